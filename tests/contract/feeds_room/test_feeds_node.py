"""The feeds of one node: chores, a store that fails, and recovery from a snapshot."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from partly_down import PartlyDown

from services import environment, until
from services.valkey import ValkeyCluster, ValkeyServer
from strandline.clock import ManualClock
from strandline.errors import Invalid, InvalidCursor, Miss, OutcomeUnknown, Unavailable
from strandline.feeds import Entry
from strandline.feeds.model import feeds_of
from strandline.feeds.operation_log import OPERATIONS
from strandline.feeds.settings import FeedSettings
from strandline.platform import Platform
from strandline.settings import Settings

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def node(tmp_path: Path, clock: ManualClock) -> Iterator[Platform]:
    with Platform(tmp_path / "data", Settings(), clock) as opened:
        yield opened


def run(node: Platform, name: str) -> None:
    (chore,) = [chore for chore in node.feeds.chores() if name in chore.name]
    chore.run()


def ids(node: Platform, feed: str) -> list[int]:
    return [entry.id for entry in node.feeds.get(feed)]


@pytest.fixture
def store(node: Platform, monkeypatch: pytest.MonkeyPatch) -> PartlyDown:
    for name in ("ada", "bob"):
        node.feeds.set(name, [])
    partly = PartlyDown(node.feeds.store(), {"bob"})
    monkeypatch.setattr(node.feeds, "_opened", partly)
    return partly


def test_nothing_is_opened_before_it_is_used(node, tmp_path):
    """A node that has no feeds has no file for them, and no event type."""
    for chore in node.feeds.chores():
        chore.run()
    node.feeds.check_ready()
    assert not (tmp_path / "data" / "feeds.db").exists()
    assert node.log.event_types() == []


def test_unread_feeds_expire_and_are_counted(node, clock):
    node.feeds.set("ada", [Entry(1)])
    node.feeds.check_ready()
    clock.advance(22 * DAY_MS)
    run(node, "expiry")
    with pytest.raises(Miss):
        node.feeds.get("ada")
    counted = {metric.name: dict(values) for metric, values in node.feeds.counts().items()}
    assert counted["strandline_feeds_expired"] == {"unread": 1}
    assert counted["strandline_feed_operations"] == {"set": 1}
    assert counted["strandline_feed_reads"] == {"miss": 1}


def test_a_part_that_is_down_is_retried_later(node, store):
    """The other feeds get the entry at once, and the caller learns how many."""
    assert node.feeds.append(Entry(7), ["ada", "bob"]) == 1
    assert (ids(node, "ada"), ids(node, "bob")) == ([7], [])
    gauges = {metric.name: values for metric, values in node.feeds.gauges().items()}
    assert gauges["strandline_feed_retries"] == {"waiting": 1.0}
    store.down = set()
    until(lambda: ids(node, "bob") == [7], "the retry")
    assert node.feeds.dead_letters() == []


def test_if_all_feeds_fail_the_caller_gets_the_error_and_it_is_retried(node, store):
    with pytest.raises(Unavailable, match="shard is down"):
        node.feeds.append(Entry(7), ["bob"])
    store.down = set()
    until(lambda: ids(node, "bob") == [7], "the retry")


def test_what_waits_when_the_node_ends_is_a_dead_letter(node, store, tmp_path, clock):
    node.feeds.append(Entry(7), ["ada", "bob"])
    node.close()
    with Platform(tmp_path / "data", Settings(), clock) as again:
        (letter,) = again.feeds.dead_letters()
        assert feeds_of(letter.operation) == ("bob",)
        assert letter.reason == "the process ended: the shard is down"
        run(again, "counting")
        gauges = {metric.name: values for metric, values in again.feeds.gauges().items()}
        assert gauges["strandline_feed_dead_letters"] == {"append": 1.0}


def test_what_waits_when_a_node_with_chores_ends_is_applied_later(node, store, tmp_path, clock):
    """A restart while a part of the store is down loses nothing that was acknowledged."""
    run(node, "taking over")
    node.feeds.append(Entry(7), ["ada", "bob"])
    node.close()
    with Platform(tmp_path / "data", Settings(), clock) as again:
        clock.advance(FeedSettings().retry_ms + 70_000)
        run(again, "taking over")
        assert (ids(again, "ada"), ids(again, "bob")) == ([7], [7])
        assert again.feeds.dead_letters() == []


def killed_while_retrying(tmp_path: Path) -> None:
    """A process has acknowledged an append that one of two feeds does not have, and was killed."""
    run_killed(tmp_path)


def run_killed(tmp_path: Path, *when: str) -> None:
    worker = Path(__file__).with_name("killed_worker.py")
    command = [sys.executable, worker, tmp_path / "data", *when]
    assert subprocess.run(command, env=environment(), timeout=60, check=False).returncode == -signal.SIGKILL


def test_what_waits_when_the_node_is_killed_is_applied_later(tmp_path, clock, monkeypatch):
    with Platform(tmp_path / "data", Settings(), clock) as node:
        for name in ("ada", "bob"):
            node.feeds.set(name, [])
        killed_while_retrying(tmp_path)
        run(node, "taking over")  # the other process may still be alive
        assert (ids(node, "ada"), ids(node, "bob")) == ([7], [])
        clock.advance(FeedSettings().retry_ms + 70_000)
        run(node, "taking over")
        assert (ids(node, "ada"), ids(node, "bob")) == ([7], [7])
        assert node.feeds.dead_letters() == []
        monkeypatch.setattr(node.feeds, "_opened", PartlyDown(node.feeds.store(), {"ada", "bob"}))
        run(node, "taking over")  # nothing is left
        assert node.feeds.dead_letters() == []


def test_what_a_killed_node_has_only_recorded_is_applied_before_it_is_marked(tmp_path, clock):
    """Otherwise a snapshot with that mark, and the store itself, would never get it."""
    with Platform(tmp_path / "data", Settings(), clock) as node:
        for name in ("ada", "bob"):
            node.feeds.set(name, [])
        run(node, "marking")
        run_killed(tmp_path, "recorded")
        run(node, "marking")  # the other process may still be alive
        assert (ids(node, "ada"), ids(node, "bob")) == ([], [])
        clock.advance(30_000)
        run(node, "marking")
        assert (ids(node, "ada"), ids(node, "bob")) == ([7], [7])
        node.feeds.delete(7, ["ada"])
        assert node.feeds.replay() == 1  # everything before is marked


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts"])
def test_a_write_with_an_unknown_outcome_is_applied_if_it_was_recorded(tmp_path, clock, monkeypatch, restarts):
    node = Platform(tmp_path / "data", Settings(), clock)
    node.feeds.set("ada", [])
    publish = node.log.publish

    def publish_without_answer(*given: object) -> None:
        publish(*given)
        raise OutcomeUnknown("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(node.log, "publish", publish_without_answer)
        with pytest.raises(OutcomeUnknown):
            node.feeds.append(Entry(7), ["ada"])
    assert ids(node, "ada") == []
    if restarts:
        node.close()
        node = Platform(tmp_path / "data", Settings(), clock)
        clock.advance(30_000)
    run(node, "marking")
    assert ids(node, "ada") == [7]
    node.close()


def test_an_interrupted_write_is_applied_if_it_was_recorded(node, tmp_path, clock, monkeypatch):
    """Such as by Ctrl-C in a program, although it closes the platform."""

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    node.feeds.set("ada", [])
    clock.advance(1)  # the processes' times of the same millisecond are in any order
    other = Platform(tmp_path / "data", Settings(), clock)
    monkeypatch.setattr(other.feeds.store(), "apply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        other.feeds.append(Entry(7), ["ada"])
    other.close()
    clock.advance(30_000)
    run(node, "marking")
    assert ids(node, "ada") == [7]


def test_a_node_that_ends_normally_or_is_idle_was_not_killed(node, tmp_path, clock):
    with Platform(tmp_path / "data", Settings(), clock) as other:
        other.feeds.set("ada", [])
    node.feeds.set("bob", [])
    run(node, "marking")
    before = node.feeds.store().positions(OPERATIONS)
    node.feeds.set("eve", [])
    for _ in range(5):
        clock.advance(10_000)
        run(node, "marking")
    assert node.feeds.store().positions(OPERATIONS) == before  # nothing was applied again


def test_a_node_goes_on_if_the_log_lost_what_a_killed_one_recorded(node, tmp_path, clock, monkeypatch):
    def fail(*_: object) -> int:
        raise InvalidCursor("the offset has expired", reason="UNAVAILABLE")

    node.feeds.set("ada", [])
    run_killed(tmp_path, "recorded")
    clock.advance(DAY_MS)
    monkeypatch.setattr(node.feeds._recovery, "replay", fail)
    run(node, "marking")
    monkeypatch.undo()
    run(node, "marking")
    assert ids(node, "ada") == []


@pytest.mark.parametrize(
    ("later_ms", "reason"),
    [(DAY_MS, "retried it ended: the shard is down"), (11 * DAY_MS, "older than feeds.grace_ms")],
)
def test_what_a_killed_node_leaves_and_cannot_be_applied_is_a_dead_letter(
    node, store, tmp_path, clock, later_ms, reason
):
    killed_while_retrying(tmp_path)
    clock.advance(later_ms)
    run(node, "taking over")
    (letter,) = node.feeds.dead_letters()
    assert reason in letter.reason
    assert feeds_of(letter.operation) == ("bob",)


def test_an_append_that_cannot_be_kept_for_a_retry_is_not_acknowledged(node, store, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("the database is down")

    monkeypatch.setattr(node.feeds._dead_operations(), "wait", fail)
    with pytest.raises(OutcomeUnknown, match="repeat it with the same operation time"):
        node.feeds.append(Entry(7), ["ada", "bob"])


def test_without_recording_nothing_is_published(tmp_path, clock):
    settings = Settings(feeds=FeedSettings(record=False))
    with Platform(tmp_path / "data", settings, clock) as node:
        node.feeds.set("ada", [Entry(1)])
        assert ids(node, "ada") == [1]
        assert node.log.event_types() == []


def test_an_operation_that_could_not_be_recorded_is_not_applied(node, monkeypatch):
    node.feeds.set("ada", [])

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("the log is down")

    monkeypatch.setattr(node.feeds._log._log, "publish", fail)
    with pytest.raises(Unavailable, match="the log is down"):
        node.feeds.append(Entry(1), ["ada"])
    assert ids(node, "ada") == []


def test_an_unknown_store_is_refused(tmp_path, clock):
    settings = Settings(feeds=FeedSettings(url="mysql://x"))
    with Platform(tmp_path / "data", settings, clock) as node, pytest.raises(Invalid, match="redis"):
        node.feeds.get("ada")


# -- recovery


def answers(node: Platform) -> list[object]:
    return [(one.status, one.entries) for one in node.feeds.get_many(["ada", "bob", "eve"], 0, 800)]


def lose_feeds(tmp_path: Path) -> None:
    for file in (tmp_path / "data").glob("feeds.db*"):
        file.unlink()


def log_is_down(*_: object) -> None:
    raise Unavailable("the log is down")


def write_history(node: Platform) -> None:
    node.feeds.set("ada", [Entry(n, b"m%d" % n) for n in range(50)])
    node.feeds.set("bob", [])
    for n in range(100, 130):
        node.feeds.append(Entry(n), ["ada", "bob", "eve"])
    node.feeds.delete(105, ["ada", "bob", "eve"])
    node.feeds.unmerge("ada", [110, 111])
    node.feeds.merge("bob", [Entry(7)])
    node.feeds.set("eve", [Entry(105), Entry(1)])


def test_a_wiped_store_comes_back_from_the_log(node, tmp_path, clock):
    write_history(node)
    before = answers(node)
    node.close()
    lose_feeds(tmp_path)
    with Platform(tmp_path / "data", Settings(), clock) as again:
        assert answers(again) == [("miss", ())] * 3
        assert again.feeds.replay() == 36
        assert answers(again) == before
        assert again.feeds.replay() == 0


def test_a_server_whose_store_is_gone_restores_it_before_anybody_asks(node, tmp_path, clock):
    """Until then it is not ready, and says of no feed that it does not exist."""
    write_history(node)
    before = answers(node)
    node.close()
    lose_feeds(tmp_path)
    with Platform(tmp_path / "data", Settings(), clock) as again:
        again.feeds.start()
        with pytest.raises(Unavailable, match="may lack recorded operations") as caught:
            again.feeds.check_ready()
        assert caught.value.retry_after > 0
        assert {one.status for one in again.feeds.get_many(["ada", "nobody"])} == {"error"}
        for read in (lambda: again.feeds.get("ada"), lambda: again.feeds.get_since("ada", 5)):
            with pytest.raises(Unavailable):
                read()
    lose_feeds(tmp_path)
    with Platform(tmp_path / "data", Settings(), clock) as again:
        again.feeds.start()
        run(again, "marking")
        assert (tmp_path / "data" / "feeds.db").exists()
        again.feeds.check_ready()
        assert answers(again) == before
        assert again.feeds.get_many(["nobody"])[0].status == "miss"


def test_a_replay_makes_a_server_ready(node, tmp_path, clock):
    write_history(node)
    node.close()
    lose_feeds(tmp_path)
    with Platform(tmp_path / "data", Settings(), clock) as again:
        again.feeds.start()
        again.feeds.replay()
        again.feeds.check_ready()


def test_a_server_that_cannot_compare_its_store_is_not_ready(node, tmp_path, clock, monkeypatch):
    node.feeds.set("ada", [])
    node.close()
    with Platform(tmp_path / "data", Settings(), clock) as again:
        with monkeypatch.context() as patched:
            patched.setattr(again.log.types, "entry", log_is_down)
            again.feeds.start()
            run(again, "marking")
            with pytest.raises(Unavailable):
                again.feeds.check_ready()
        run(again, "marking")
        again.feeds.check_ready()


def test_a_server_without_feeds_or_recording_is_ready_at_once(node, tmp_path, clock):
    """Also after its first write, although the next comparison is to come."""
    node.feeds.start()
    node.feeds.check_ready()
    run(node, "marking")
    node.feeds.set("ada", [])
    node.feeds.check_ready()
    assert node.feeds.get_many(["nobody"])[0].status == "miss"
    node.close()
    with Platform(tmp_path / "data", Settings(feeds=FeedSettings(record=False)), clock) as again:
        again.feeds.start()
        again.feeds.check_ready()


def test_a_snapshot_and_a_replay_give_the_same_feeds(node, tmp_path, clock):
    """The snapshot says where the replay starts, so it does not begin at the first operation."""
    write_history(node)
    run(node, "marking")
    clock.advance(DAY_MS // 24)
    node.feeds.append(Entry(200), ["ada"])
    run(node, "marking")
    node.close()
    snapshot = tmp_path / "snapshot.db"
    shutil.copy(tmp_path / "data" / "feeds.db", snapshot)
    with Platform(tmp_path / "data", Settings(), clock) as later:
        later.feeds.append(Entry(201), ["ada", "bob"])
        later.feeds.drop("eve")
        before = answers(later)
    lose_feeds(tmp_path)
    shutil.copy(snapshot, tmp_path / "data" / "feeds.db")
    with Platform(tmp_path / "data", Settings(), clock) as again:
        assert again.feeds.replay() == 3  # the one after the mark, and the two after the snapshot
        assert answers(again) == before


@pytest.fixture(params=["server", pytest.param("cluster", marks=pytest.mark.slow)])
def own_valkey(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ValkeyServer | ValkeyCluster]:
    """One that no other test uses, because its snapshots outlive the test."""
    kind = ValkeyCluster if request.param == "cluster" else ValkeyServer
    with kind(tmp_path / "valkey") as server:
        yield server


def nodes_of(server: ValkeyServer | ValkeyCluster) -> list[ValkeyServer]:
    return [server] if isinstance(server, ValkeyServer) else server.nodes


def test_a_valkey_that_was_lost_comes_back_from_its_snapshots_and_a_replay(own_valkey, tmp_path, clock):
    """Masters save at different times. What they got after that is lost, and comes back from the log."""
    settings = Settings(feeds=FeedSettings(url=own_valkey.url))
    with Platform(tmp_path / "data", settings, clock) as node:
        write_history(node)
        run(node, "marking")
        clock.advance(DAY_MS // 24)
        run(node, "marking")
        for number, server in enumerate(nodes_of(own_valkey)):
            server.execute("SAVE")
            node.feeds.append(Entry(300 + number, b"late"), ["ada", "bob"])
        node.feeds.delete(120, ["ada", "bob", "eve"])
        node.feeds.drop("eve")
        before = answers(node)
    for server in nodes_of(own_valkey):
        server.kill()
    own_valkey.bring_back()
    with Platform(tmp_path / "data", settings, clock) as again:
        assert answers(again) != before
        assert 0 < again.feeds.replay() < 36  # not from the first operation on
        assert answers(again) == before


def test_only_what_was_recorded_long_ago_is_marked(node, clock):
    """An operation that another node has recorded may still be in progress there."""
    node.feeds.set("ada", [])
    run(node, "marking")  # the first time, everything before is applied again
    first = node.feeds.store().positions(OPERATIONS)
    assert [*first] == [0]
    node.feeds.set("bob", [])
    run(node, "marking")
    clock.advance(60_000)
    run(node, "marking")
    assert node.feeds.store().positions(OPERATIONS) == first
    clock.advance(DAY_MS)
    run(node, "marking")
    assert node.feeds.store().positions(OPERATIONS)[0] > first[0]


def test_nothing_is_marked_in_a_store_that_starts_again_meanwhile(node, clock, monkeypatch):
    """What it had not saved is lost, also of what a replay has just applied."""
    store, starts = node.feeds.store(), ["1"]
    monkeypatch.setattr(store, "incarnation", lambda: starts.pop() if len(starts) > 1 else starts[0])
    node.feeds.set("ada", [])
    starts[:] = ["2", "1"]
    with pytest.raises(Unavailable, match="started again"):
        node.feeds.replay()
    assert store.positions(OPERATIONS) == {}
    assert node.feeds.replay() == 1
    marked = store.positions(OPERATIONS)
    node.feeds.set("bob", [])
    run(node, "marking")
    clock.advance(DAY_MS)
    starts[:] = ["3", "2"]
    run(node, "marking")
    assert store.positions(OPERATIONS) == marked
    assert node.feeds.replay() == 1


@pytest.mark.parametrize("restarts", [False, True], ids=["under a node", "before a node starts"])
def test_a_snapshot_that_is_restored_gets_what_it_lacks_before_it_is_marked(own_valkey, tmp_path, clock, restarts):
    """Otherwise a position would say that it has everything, and no replay would bring back the rest."""
    settings = Settings(feeds=FeedSettings(url=own_valkey.url))
    node = Platform(tmp_path / "data", settings, clock)
    write_history(node)
    run(node, "marking")
    for server in nodes_of(own_valkey):
        server.execute("SAVE")
    node.feeds.append(Entry(300, b"late"), ["ada", "bob"])
    node.feeds.drop("eve")
    before = answers(node)
    for _ in range(3):
        clock.advance(DAY_MS // 24)
        run(node, "marking")
    if restarts:
        node.close()
    for server in nodes_of(own_valkey):
        server.kill()
    own_valkey.bring_back()
    if restarts:
        node = Platform(tmp_path / "data", settings, clock)
    assert answers(node) != before
    for _ in range(3):
        run(node, "marking")
        clock.advance(DAY_MS // 24)
        assert answers(node) == before
    assert node.feeds.replay() == 0
    node.close()


def test_a_store_that_restarts_gets_what_it_had_not_saved(own_valkey, tmp_path, clock):
    """Its snapshot has the newest position, because positions are saved some minutes late."""
    settings = Settings(feeds=FeedSettings(url=own_valkey.url))
    with Platform(tmp_path / "data", settings, clock) as node:
        write_history(node)
        run(node, "marking")
        for server in nodes_of(own_valkey):
            server.execute("SAVE")
        node.feeds.append(Entry(300, b"late"), ["ada", "bob"])
        node.feeds.drop("eve")
        before = answers(node)
        for server in nodes_of(own_valkey):
            server.kill()
        own_valkey.bring_back()
        assert answers(node) != before
        run(node, "marking")
        assert answers(node) == before


def test_a_store_that_restarts_just_before_it_is_marked(own_valkey, tmp_path, clock, monkeypatch):
    """The mark would cover operations that the store has lost."""
    settings = Settings(feeds=FeedSettings(url=own_valkey.url))
    with Platform(tmp_path / "data", settings, clock) as node:
        write_history(node)
        for server in nodes_of(own_valkey):
            server.execute("SAVE")
        node.feeds.append(Entry(300, b"late"), ["ada", "bob"])
        before = answers(node)
        store = node.feeds.store()
        ask, asked = store.incarnation, []

        def restart_after_the_check() -> str:
            found = ask()
            asked.append(found)
            if len(asked) == 2:  # the first answer is of the start of the replay
                for server in nodes_of(own_valkey):
                    server.kill()
                own_valkey.bring_back()
            return found

        monkeypatch.setattr(store, "incarnation", restart_after_the_check)
        with pytest.raises(Unavailable, match="started again"):
            node.feeds.replay()
        assert store.positions(OPERATIONS) == {}
        assert answers(node) != before
        run(node, "marking")
        assert answers(node) == before


def test_a_store_that_loses_its_first_operations_gets_them_back(own_valkey, tmp_path, clock):
    """Nothing was recorded yet when the node looked for a position for the first time."""
    settings = Settings(feeds=FeedSettings(url=own_valkey.url))
    with Platform(tmp_path / "data", settings, clock) as node:
        run(node, "marking")
        write_history(node)
        before = answers(node)
        run(node, "marking")
        own_valkey.flush()
        assert answers(node) != before
        run(node, "marking")
        assert answers(node) == before


def test_a_feed_is_not_missing_while_a_store_is_restored_under_a_node(own_valkey, tmp_path, clock, monkeypatch):
    settings = Settings(feeds=FeedSettings(url=own_valkey.url))
    with Platform(tmp_path / "data", settings, clock) as node:
        write_history(node)
        run(node, "marking")
        own_valkey.flush()
        with monkeypatch.context() as patched:
            patched.setattr(node.log, "read", log_is_down)
            run(node, "marking")
        assert [one.status for one in node.feeds.get_many(["ada"])] == ["error"]
        with pytest.raises(Unavailable):
            node.feeds.check_ready()
        run(node, "marking")
        assert [one.status for one in node.feeds.get_many(["ada", "nobody"])] == ["hit", "miss"]


def test_a_node_that_was_away_for_long_has_no_dead_letters(tmp_path, clock):
    """What is older than the grace time was applied, and is not applied again."""
    for _ in range(2):
        clock.advance(1)
        with Platform(tmp_path / "data", Settings(), clock) as node:
            node.feeds.set("ada", [Entry(1)])
            clock.advance(11 * DAY_MS)
            run(node, "marking")
            assert node.feeds.dead_letters() == []
            assert ids(node, "ada") == [1]


def test_a_store_that_does_not_answer_is_marked_later(node, monkeypatch, caplog):
    def fail(_: str) -> None:
        raise Unavailable("the store is down")

    node.feeds.set("ada", [])
    with monkeypatch.context() as patched:
        patched.setattr(node.feeds.store(), "positions", fail)
        run(node, "marking")
    assert "not marked as applied: the store is down" in caplog.text
    run(node, "marking")
    assert [*node.feeds.store().positions(OPERATIONS)] == [0]


def test_a_replay_leaves_out_events_that_are_no_operations(node):
    node.feeds.set("ada", [Entry(1)])
    one = {"operation": "append", "operation_time": "5", "feeds": ["ada"], "entries": [{"id": "1"}]}
    wrong = [{"hello": 1}, one | {"entries": [{"id": "9223372036854775808"}]}, one | {"feeds": ["a b"]}]
    wrong += [one | {"operation_time": str(2**63)}, one | {"entries": [{"id": "1", "metadata": "A" * 90_000}]}]
    node.log.publish(OPERATIONS, wrong).raise_for_failed()
    node.feeds.append(Entry(2), ["ada"])
    assert node.feeds.replay() == 2


def test_a_replay_without_a_log_does_nothing(node):
    assert node.feeds.replay() == 0


def test_a_replay_refuses_what_is_older_than_the_grace_time(node, clock):
    node.feeds.set("ada", [Entry(1)])
    clock.advance(11 * DAY_MS)
    assert node.feeds.replay() == 0
    (letter,) = node.feeds.dead_letters()
    assert "grace" in letter.reason
