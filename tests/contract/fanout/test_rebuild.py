"""Rebuilds after the store of the feeds was lost, on every engine."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import msgspec
import pytest

from services import is_stopped, until
from social_network import Network, create, fanout, home, killed, start, wipe
from strandline import progress
from strandline.engine.lease_keeper import LeaseKeeper
from strandline.errors import Gap, Invalid, NotFound, Unavailable
from strandline.feeds.fanout import rules
from strandline.feeds.fanout.rebuild import RebuildOptions
from strandline.feeds.fanout.restoring import RestoreHere
from strandline.log import StorageInfo
from strandline.log.storage.registry import SqliteConfiguration

NOTHING = threading.Event()


def rebuild(node, users="*", *, archived=lambda *_: [], authors=True) -> list:
    told: list = []
    made = node.feeds.fanouts.rebuild(archived)
    made.run(RebuildOptions(users, authors), RestoreHere(), NOTHING, told.append)
    return told


@pytest.mark.parametrize("seed", [1, 2])
def test_a_store_that_was_lost(network, node, seed):
    """Afterwards everything is as before, and the fan-out goes on."""
    network.live(80, seed)
    fanout(node).once()
    network.check()
    wipe(network)
    told = rebuild(node)
    for user in {*network.users} - {follower for _, follower in network.edges}:
        node.feeds.set(f"home:{user}", [])  # nobody to read: not in the graph
    network.check()
    assert told[-1].rows == len({follower for _, follower in network.edges})
    network.live(40, seed + 10)
    fanout(node).once()
    network.check()


def test_the_fan_out_has_gone_on_since_the_loss(network, node):
    """What it wrote to the feeds of authors stays. An open batch is closed first, also that of another process."""
    network.live(60, 3)
    fanout(node).once()
    wipe(network)
    network.live(30, 4)
    killed(node, "fanout.delivered:kill")
    rebuild(node, ",".join(network.users))
    fanout_again(node)
    network.check()


def fanout_again(node) -> None:
    batches = fanout(node)._batches
    while batches.step(batches.look()):
        pass


def test_a_rebuild_while_the_fan_out_runs(network, node, opened):
    """Nothing is lost, and nothing comes back."""
    network.live(60, 5)
    fanout(node).once()
    wipe(network)
    stop = threading.Event()
    running = threading.Thread(target=fanout(opened()).run, args=(stop,))
    running.start()
    try:
        for part in range(3):
            network.live(20, 6 + part)
            rebuild(node, ",".join(network.users))
    finally:
        stop.set()
        running.join()
    fanout_again(node)
    network.check()


@pytest.mark.parametrize("closes", ["before", "after"])
def test_an_unfollow_while_a_home_feed_is_filled(network, node, monkeypatch, closes):
    """The unfollow does not see the content, which comes later with an earlier time. The batch is closed before or
    after the content is set; a rebuild that was suspended is not registered any more."""
    network.follow("user1", "user0")
    network.follow("user1", "user2")
    for author in ("user0", "user2"):
        network.post(author)
    fanout(node).once()
    united, batches = rules.united, []

    def unfollow_first(*given):
        if not batches:
            network.unfollow("user1", "user0")
            batches.append(start(node, "fanout.marked:stop:1" if closes == "after" else ""))
            if closes == "after":
                until(lambda: is_stopped(batches[0].pid), "the pause of the fan-out")
            else:
                batches[0].communicate(timeout=120)
        return united(*given)

    monkeypatch.setattr(rules, "united", unfollow_first)
    if closes == "before":
        monkeypatch.setattr(LeaseKeeper, "register", lambda _: None)
    rebuild(node, "user1", authors=False)
    if closes == "after":
        os.kill(batches[0].pid, signal.SIGCONT)
        batches[0].communicate(timeout=120)
    network.check()


def test_one_user_who_comes_back(network, node):
    """From the feeds of authors alone. Other feeds are not touched."""
    network.live(60, 9)
    fanout(node).once()
    network.check()
    node.feeds.drop("home:user1")
    told = rebuild(node, "user1", authors=False)
    network.check()
    assert (told[-1].rows, told[-1].details) == (1, {"authors": 0})


def test_a_rebuild_that_is_stopped_says_so(network, node, monkeypatch):
    """The feeds of users whose turn has not come stay as they are."""
    network.live(60, 11)
    fanout(node).once()
    monkeypatch.setattr("strandline.feeds.fanout.rebuild._USERS_IN_TASK", 2)
    monkeypatch.setattr("strandline.feeds.fanout.rebuild._TASKS_AT_ONCE", 1)
    stop, told = threading.Event(), []

    def on_progress(progress):
        told.append(progress)
        if progress.rows:
            stop.set()

    made = node.feeds.fanouts.rebuild(lambda *_: [])
    with pytest.raises(Unavailable, match="after 2 of 8 home feeds; start it again"):
        made.run(RebuildOptions(",".join(network.users)), RestoreHere(), stop, on_progress)
    assert (told[-1].rows, told[-1].lag) == (2, {"0": 6})
    network.check()


@pytest.mark.parametrize("rebuilds", [True, False])
def test_feeds_of_authors_that_were_dropped_are_made_again(network, node, rebuilds):
    """By a rebuild with all posts, by the fan-out with later ones. A follow needs them."""
    network.follow("user1", "user0")
    network.post("user0")
    fanout(node).once()
    node.feeds.drop("posts:user0")
    if rebuilds:
        rebuild(node)
    second = network.post("user0")
    fanout(node).once()
    network.follow("user2", "user0")
    fanout(node).once()
    if rebuilds:
        network.check()
    assert home(node, "user2") == ([second, 1] if rebuilds else [second])


def test_a_rebuild_is_shown_while_it_runs_and_not_as_a_fan_out(network, node, opened):
    network.live(20, 13)
    fanout(node).once()
    other, seen = opened().feeds.fanouts, []

    def on_progress(_):
        until(lambda: any(map(progress.parse, other.rebuilds().values())), "the progress of the rebuild")
        assert other.progress() == {}
        seen.extend(other.rebuilds().items())

    made = node.feeds.fanouts.rebuild(lambda *_: [])
    made.run(RebuildOptions(), RestoreHere(), NOTHING, on_progress)
    owner, text = seen[0]
    assert "rebuild:" + owner == made.keeper.owner
    (shown,) = progress.parse(text)
    assert (shown.event_type, shown.details) == ("posts", {"authors": 0})
    assert other.rebuilds() == {}


@dataclass(frozen=True)
class Kept:
    """Posts that are in the archive only."""

    events: tuple

    def values(self):
        return (msgspec.json.encode(event) for event in self.events)


def test_posts_that_are_in_the_archive_only(network, node):
    """They are asked for by the position at which the log begins. Their deletions count, wherever they are."""
    network.follow("user1", "user0")
    network.post("user0")
    network.publish("posts", {"author": "user0", "id": -5, "deleted": True})
    fanout(node).once()
    asked = []

    def archived(event_type, ends):
        asked.append((event_type, {partition: str(at) for partition, at in ends.items()}))
        old = [{"author": "user0", "id": number} for number in (-4, -5)]
        return [Kept((*old, {"nonsense": 1}, {"author": "user3", "id": -6}))]

    rebuild(node, "user1", archived=archived)
    assert home(node, "user1") == [1, -4]
    assert asked == [("posts", {0: "001-0001--1", 1: "001-0001--1"})]


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_posts_that_have_expired_come_from_ready_hours(opened, monkeypatch):
    """From the files of the archive itself; newer ones from the log."""
    for name, value in (("DURATION_MS", "1000"), ("GRACE_MS", "100"), ("MIN_RECORDS", "1")):
        monkeypatch.setenv(f"STRANDLINE_ARCHIVE__{name}", value)
    node = opened()
    create(node)
    network = Network(node)
    network.join()
    network.follow("user1", "user0")
    past = {"occurred_at": node.clock.now_ms() - 3_600_000}
    network.publish("posts", *({"author": "user0", "id": number, "metadata": past} for number in (1, 2)))

    def archived() -> list:
        node.archive.process().once()
        return node.archive.values_before("posts", {})

    until(archived, "files of a ready hour")
    expire(node, "posts")
    network.publish("posts", {"author": "user0", "id": 3}, {"author": "user0", "id": 1, "deleted": True})
    fanout(node, lost="skip").once()
    wipe(network)
    rebuild(node, "user1", archived=node.archive.values_before)
    assert home(node, "user1") == [3, 2]


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_the_first_posts_of_a_partition_that_expired_unread_are_missed(node, network):
    """The fan-out has been at the start of the empty partition, so it notices what it has lost since."""
    fanout(node).once()
    network.post("user0")
    expire(node, "posts")
    with pytest.raises(Gap, match="expired"):
        fanout(node).once()


def expire(node, name):
    """Remove the records that an event type has, as after its retention time."""
    node.log.admin.add_storage(StorageInfo("second", "sqlite", sqlite_configuration=SqliteConfiguration("second")))
    node.log.admin.switch(name, "second")
    old = node.log.types.entry(name).timelines[0]
    assert node.log._catalog.remove_timeline(msgspec.structs.replace(old, cleaned_up_at="2024-05-01T12:00:00Z"), 0)


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_what_a_rebuild_needs(node):
    with pytest.raises(NotFound, match="run the job `fanout` first"):
        rebuild(node)
    fanout(node)
    for nobody in ("", " , "):
        with pytest.raises(Invalid, match="--rebuild-users"):
            rebuild(node, nobody)
    with pytest.raises(Invalid, match="'home:no body' is not the name of a feed"):
        rebuild(node, "ada,no body")
