"""What the fan-out does with posts and follows, on every engine."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from services import until
from social_network import Network, fanout, fanouts, home
from strandline import EventType
from strandline.errors import Conflict, Gap, Invalid
from strandline.feeds import Entry, times
from strandline.feeds.fanout.values import FanoutOptions
from strandline.log.cursors import Position


def test_posts_reach_followers(network, node):
    network.follow("user1", "user0")
    network.post("user0")
    network.post("user2")
    fanout(node).once()
    network.check()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_life(network, node, seed):
    """Posts, deletions, follows and unfollows, with large authors, in several runs."""
    for part in range(3):
        network.live(40, seed * 10 + part)
        fanout(node).once()
        network.check()


def test_a_follow_brings_history_and_an_unfollow_takes_it(network, node):
    """A follow again brings it back. Nobody else is touched."""
    for _ in range(3):
        network.post("user0")
    fanout(node).once()
    for act in (network.follow, network.unfollow, network.follow):
        act("user1", "user0")
        fanout(node).once()
        network.check()


@pytest.mark.parametrize("repeats", [["follow"], ["unfollow", "follow"]])
def test_a_repeated_follow_brings_history_to_a_newer_feed(network, node, repeats):
    """Whether the follows are in one batch or not: the home feed is created after the first one."""
    network.post("user0")
    network.follow("stranger", "user0")
    fanout(node).once()
    node.feeds.set("home:stranger", [])
    for act in repeats:
        getattr(network, act)("stranger", "user0")
    fanout(node).once()
    network.post("user0")
    fanout(node).once()
    assert home(node, "stranger") == [2, 1]
    assert fanouts(node).book().sizes(["user0"]) == {"user0": 1}


def test_a_feed_that_was_set_in_the_millisecond_of_a_follow(network, node):
    """The set had its operation time before the follow was published, so the follow brings history."""
    network.post("user0")
    fanout(node).once()
    network.follow("stranger", "user0")
    (published_ms,) = [ms for batch in node.log.read("follows") for ms in batch.records["timestamp"].to_pylist()]
    node.feeds.set("home:stranger", [], operation_time=times.of_ms(published_ms) + 2**19)
    fanout(node).once()
    assert home(node, "stranger") == [1]


def test_an_unfollow_that_is_read_after_later_posts(network, node):
    """The order of batches counts, not the clocks of two event types: the posts do not stay."""
    network.follow("user1", "user0")
    fanout(node).once()
    network.unfollow("user1", "user0")
    network.post("user0")
    batches = fanouts(node).batches(*_parts(node))
    posts = {"posts": batches.look()["posts"]}
    while batches.step(posts):
        pass
    assert home(node, "user1") == [1]
    fanout(node).once()
    network.check()


def _parts(node):
    options = fanout(node)._place
    return options, fanouts(node).book().route()


def test_deletions_and_unfollows_in_one_batch(network, node):
    """An unfollow takes out deleted entries, too, which are no longer in the feed of their author."""
    for user in network.users[1:6]:
        network.follow(user, "user0")
    network.follow("user2", "user7")
    posts = [network.post(author) for author in ("user0", "user0", "user7")]
    fanout(node).once()
    for post in posts[1:]:
        network.delete(post)
    network.unfollow("user1", "user0")
    network.unfollow("user2", "user7")
    fanout(node).once()
    network.check()
    network.follow("user1", "user0")
    network.follow("user2", "user7")
    fanout(node).once()
    network.check()


def test_an_unfollow_leaves_the_entries_of_others(node):
    """Ids that the home feed never had would take their places under the cap."""
    for author, ids in (("bob", range(1, 11)), ("ada", range(1001, 1801))):
        posted(node, author, *ids)
    network = Network(node)
    for author in ("ada", "bob"):
        network.follow("eve", author)
    fanout(node).once()
    bobs = [*range(10, 0, -1)]
    node.feeds.set("home:eve", [*map(Entry, bobs)])
    posted(node, "ada", 2000)
    fanout(node).once()
    assert home(node, "eve") == [2000, *bobs]
    network.unfollow("eve", "ada")
    fanout(node).once()
    assert home(node, "eve") == bobs
    posted(node, "bob", *range(11, 800))
    fanout(node).once()
    assert home(node, "eve") == [*range(799, 0, -1)]  # and the place of 2000
    network.follow("eve", "ada")
    fanout(node).once()
    assert home(node, "eve") == [2000, *range(1800, 1001, -1)]


def posted(node, author, *ids):
    for start in range(0, len(ids), 500):
        events = [{"author": author, "id": number} for number in ids[start : start + 500]]
        node.log.publish("posts", events).raise_for_failed()


def test_an_unfollow_before_a_chunk_of_the_same_batch(network, node, monkeypatch):
    """Tasks of a batch run in any order. A chunk that comes after the unfollow is hidden, and nothing else."""
    for user in network.users[1:6]:
        network.follow(user, "user0")
    fanout(node).once()
    network.post("user0")
    batches = fanout(node)._batches
    batches.step(batches.look())
    network.unfollow("user1", "user0")
    run = batches._runner.run

    def edges_first(tasks):
        (whole,) = tasks
        return run([replace(whole, posts=(), chunks=()), replace(whole, edges=())])

    with monkeypatch.context() as patched:
        patched.setattr(batches._runner, "run", edges_first)
        batches.step(batches.look())
    assert home(node, "user1") == []
    fanout(node).once()
    network.check()


@pytest.mark.parametrize("threshold", [1, 3])
def test_a_deleted_post_that_is_published_again(network, node, threshold):
    """It does not reach followers who came after the deletion. Posts in any order, and of dropped feeds, do."""
    network.follow("user1", "user0")
    network.follow("user2", "user0")
    network.post("user0")
    fanout(node, threshold=threshold).once()
    network.delete(1)
    fanout(node, threshold=threshold).once()
    network.follow("user3", "user0")
    fanout(node, threshold=threshold).once()
    event = {"author": "user0", "metadata": "YQ=="}
    network.publish("posts", *({**event, "id": number} for number in (1, *range(100, 50, -1))))
    fanout(node, threshold=threshold).once()
    expected = [*range(100, 50, -1)]
    assert [home(node, user) for user in ("user1", "user2", "user3")] == [expected] * 3
    network.publish("posts", {**event, "id": 2})
    node.feeds.drop("posts:user0")
    fanout(node, threshold=threshold).once()
    assert home(node, "user3") == [*expected, 2]


def test_a_large_author_does_not_delay_others(network, node):
    """Its posts wait in a queue; every batch delivers a chunk of them beside the other posts. All arrive once."""
    for user in network.users[1:]:
        network.follow(user, "user0")
    network.follow("user2", "user1")
    fanout(node).once()
    for _ in range(10):
        network.post("user0")
    ordinary = network.post("user1")
    process = fanout(node, batch=40)
    batches, book = process._batches, process._book
    looks = batches.look()
    batches.step(looks)
    assert home(node, "user2") == [ordinary]
    assert book.queue_length() == 10
    late = network.post("user1")
    batches.step(batches.look())
    assert home(node, "user2")[0] == late
    done = []
    process.once(done.append)
    network.check()
    assert done[-1].details["queued"] == 0
    # Seven followers get ten posts; two of the chunks were delivered by the batches before.
    assert sum(len(home(node, user)) for user in network.users[1:]) == 7 * 10 + 2


def test_followers_change_while_a_post_waits(network, node):
    """A user who leaves does not keep the post; a user who comes gets it with the history."""
    for user in network.users[1:6]:
        network.follow(user, "user0")
    fanout(node).once()
    network.post("user0")
    batches = fanout(node)._batches
    batches.step(batches.look())
    batches.step(batches.look())
    network.unfollow("user1", "user0")
    network.unfollow("user5", "user0")
    network.follow("user7", "user0")
    fanout(node).once()
    network.check()


def test_feeds_that_do_not_exist_get_nothing(network, node):
    network.follow("stranger", "user0")
    network.post("user0")
    fanout(node).once()
    assert home(node, "stranger") is None


def test_bad_records_become_dead_letters(network, node):
    """They are counted and do not stop the others."""
    network.follow("user1", "user0")
    network.publish(
        "posts",
        {"author": "user0"},
        {"author": "user0", "id": "x"},
        {"author": "a b", "id": 1},
        {"author": "user0", "id": 2, "metadata": "?"},
    )
    network.publish("follows", {"author": "user0", "follower": "user2", "action": "block"})
    network.post("user0")
    done = []
    fanout(node).once(done.append)
    network.check()
    assert done[-1].details["dead_letters"] == 5
    letters = node.feeds.fanout_letters()
    assert [(one.source, str(one.cursor).startswith("001-0001-")) for one in letters] == [
        ("follows", True),
        *[("posts", True)] * 4,
    ]
    assert {one.reason.split(";")[0][:40] for one in letters} >= {"the id 'x' is not a number"}
    assert b'"action":"block"' in letters[0].value


def test_a_post_without_metadata_and_one_with_an_object(node, network):
    network.follow("user1", "user0")
    network.publish("posts", {"author": "user0", "id": 1}, {"author": "user0", "id": 2, "metadata": {"a": [1]}})
    fanout(node).once()
    assert [entry.metadata for entry in node.feeds.get("home:user1")] == [b'{"a":[1]}', None]


def test_the_job_runs_until_it_is_stopped(network, node):
    """It sees what is published meanwhile."""
    stop = threading.Event()
    process = fanout(node)
    thread = threading.Thread(target=process.run, args=(stop,))
    thread.start()
    try:
        network.follow("user1", "user0")
        network.post("user0")
        until(lambda: home(node, "user1") == [1], "the post")
        until(lambda: process.owner in fanouts(node).progress(), "the progress")
    finally:
        stop.set()
        thread.join()
    assert fanouts(node).progress() == {}


def test_another_fan_out_in_the_same_database_is_refused(network, node):
    fanout(node)
    node.log.create(EventType("news"))
    with pytest.raises(Conflict, match=r"was begun with .*use another feeds\.database_url"):
        fanout(node, home="start:")
    with pytest.raises(Invalid, match="--fanout-follows"):
        FanoutOptions("posts", "").check()


def test_an_event_type_that_was_created_again(network, node):
    """Its cursors would name other records."""
    network.post("user0")
    fanout(node).once()
    process = fanout(node)
    node.log.delete("posts")
    node.log.create(EventType("posts"))
    with pytest.raises(Gap, match="deleted and created again"):
        process.once()


def test_a_batch_that_does_not_start_where_the_tables_are_is_refused(network, node):
    """The effects of the batch are not written a second time either."""
    network.follow("user1", "user0")
    network.post("user0")
    book = fanout(node)._book
    before = book.state()
    fanout(node).once()
    late = fanout(node)._batches
    with pytest.raises(Conflict, match="opened or closed by another process"):
        book.open(late._planned(before, late.look()))


def test_feeds_of_authors_live_as_long_as_authors(network, node):
    """Nobody may read them for weeks, but an unfollow needs them."""
    network.post("user0")
    fanout(node).once()
    book = fanout(node)._book
    assert book.idle_authors(0, 10) == []
    book.renewed(["user0"], 1)
    fanout(node).once()
    assert book.idle_authors(2, 10) == []


def test_feeds_of_authors_live_also_if_there_is_always_more_to_do(network, node):
    network.post("user0")
    fanout(node).once()
    process = fanout(node)
    process._book.renewed(["user0"], 1)
    network.post("user1")
    assert process._step(process._batches.look(), lambda _: None)
    assert process._book.idle_authors(2, 10) == []


def test_an_emptied_store_is_noticed(network, node, caplog):
    network.follow("user1", "user0")
    network.post("user0")
    fanout(node).once()
    assert fanout(node)._batches.behind() == []
    store = node.feeds.store()
    store.save_positions("fanout posts", {0: Position(1, -1), 1: Position(1, -1)})  # as in an old snapshot
    fanout(node).once()
    assert "run the job `rebuild`" in caplog.text
