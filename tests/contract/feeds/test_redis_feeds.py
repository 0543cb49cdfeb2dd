"""What is particular to feeds in Valkey: expiry by the server, memory, failing shards, and positions."""

from __future__ import annotations

import pytest
from feed_place import START_MS, ValkeyPlace, append, delete, do, drop, get, install, merge, since, unmerge

from services import until
from services.valkey import ValkeyCluster
from strandline.clock import ManualClock
from strandline.engine.connect import Databases
from strandline.errors import Invalid, OutcomeUnknown, Unavailable
from strandline.feeds.model import AppendEntry, Entry, FeedLimits, SetFeed
from strandline.feeds.settings import FeedSettings
from strandline.feeds.storage.connect import connect
from strandline.feeds.storage.redis import RedisFeedStore
from strandline.feeds.storage.redis_layout import beside_key, list_key
from strandline.log.cursors import Position

AN_HOUR_MS = 3_600_000
LIMITS = FeedLimits()


@pytest.fixture
def place(valkey):
    opened = ValkeyPlace(valkey)
    yield opened
    opened.close()


@pytest.fixture
def store(place):
    return place.open()


def life_ms(server, key: bytes) -> int:
    return server.execute("PTTL", key)


# -- life


@pytest.mark.parametrize("read", [get, lambda store, feed: since(store, feed, 1)], ids=["get", "since"])
def test_a_read_renews_the_life_of_a_feed_at_most_once_an_hour(store, valkey, read):
    do(store, install(0, "ada", 1, 2))
    key = list_key("ada")
    assert life_ms(valkey, key) > LIMITS.unread_ms - AN_HOUR_MS
    recent = LIMITS.unread_ms - AN_HOUR_MS + 60_000
    valkey.execute("PEXPIRE", key, recent)
    read(store, "ada")
    assert life_ms(valkey, key) <= recent
    valkey.execute("PEXPIRE", key, recent - 60_000)
    read(store, "ada")
    assert life_ms(valkey, key) > recent


def test_a_read_keeps_a_feed_alive_whose_life_is_short(place, valkey):
    store = place.open(FeedLimits(unread_ms=600_000))
    do(store, install(0, "ada", 1, 2))
    valkey.execute("PEXPIRE", list_key("ada"), 200_000)
    assert get(store, "ada") == [2, 1]
    assert life_ms(valkey, list_key("ada")) > 300_000


def test_writes_do_not_renew_the_life_of_a_feed(store, valkey):
    """Also not if they rewrite the list. Only a set that becomes the content of the feed renews it."""
    do(store, install(10, "ada", 1, 2))
    key = list_key("ada")
    valkey.execute("PEXPIRE", key, AN_HOUR_MS)
    do(store, *(append(20 + n, n, "ada") for n in range(200)), merge(30, "ada", 7), unmerge(31, "ada", 3))
    do(store, *(delete(40, n, "ada") for n in range(200)), install(5, "ada", 9), drop(6, "ada"))
    assert 0 < life_ms(valkey, key) <= AN_HOUR_MS
    do(store, install(50, "ada", 9))
    assert life_ms(valkey, key) > AN_HOUR_MS


def test_a_feed_that_nobody_reads_expires_with_all_but_its_tombstones(place, valkey):
    store = place.open(FeedLimits(unread_ms=50))
    do(store, install(0, "ada", 1, 2), delete(1, 2, "ada"))
    until(lambda: valkey.execute("EXISTS", list_key("ada")) == 0, "the expiry of the feed")
    assert get(store, "ada") is None
    assert do(store, append(5, 5, "ada")) == [0]
    assert store.expire() == 0
    do(store, install(6, "ada", 2, 3))
    assert [entry.id for entry in store.read(["ada"], 0, 9)[0].entries] == [3]


def test_tombstones_and_drops_live_as_long_as_the_grace_time(store, valkey):
    do(store, delete(1, 2, "ada"), drop(1, "eve"))
    for feed in ("ada", "eve"):
        assert 0 < life_ms(valkey, beside_key(feed)) <= LIMITS.grace_ms


def test_old_tombstones_are_forgotten_while_new_ones_come(place, valkey):
    store = place.open()
    do(store, install(0, "ada", 1), *(delete(1, n, "ada") for n in range(99)))
    place.clock.advance(LIMITS.grace_ms + 1)
    later = (LIMITS.grace_ms + 1) << 20
    do(store, *(delete(later, 1000 + n, "ada") for n in range(101)))
    assert valkey.execute("LLEN", beside_key("ada")) == 101
    assert get(store, "ada") == []


# -- memory


def test_an_entry_takes_at_most_40_bytes(store, valkey):
    """Of a full feed, with its head and its key, and ids as they come from a clock."""
    times = [(START_MS + n) << 20 for n in range(840)]
    do(store, SetFeed(times[0], "ada", ()))
    do(store, *(AppendEntry(time, Entry(time), ("ada",)) for time in times))
    used = valkey.execute("MEMORY", "USAGE", list_key("ada"), "SAMPLES", 0)
    assert used / 800 <= 40


# -- failures


def test_a_failing_shard_does_not_fail_the_others(tmp_path, monkeypatch):
    """Its feeds are reported; the others are written and read."""
    monkeypatch.setattr("strandline.engine.redis._ANSWER_SECONDS", 0.5)
    feeds = [f"feed-{number}" for number in range(30)]
    with ValkeyCluster(tmp_path) as cluster:
        place = ValkeyPlace(cluster)
        store = place.open()
        do(store, *(install(0, feed, 1) for feed in feeds))
        victim = cluster.master_of(list_key(feeds[0]))
        lost = {feed for feed in feeds if cluster.master_of(list_key(feed)) is victim}
        assert 0 < len(lost) < len(feeds)
        for node in cluster.nodes:  # nobody may take over
            if not node.is_master:
                node.kill()
        no_copies = RedisFeedStore(cluster.url, LIMITS, ManualClock())
        victim.kill()
        for operation in (append(1, 7, *feeds), delete(2, 1, *feeds)):
            (applied,) = no_copies.apply([operation])
            assert set(applied.failed) == lost
            assert applied.accepted == len(feeds) - len(lost)
            assert all(isinstance(error, Unavailable | OutcomeUnknown) for error in applied.failed.values())
        outcomes = no_copies.apply([merge(3, feed, 5) for feed in feeds] + [install(4, feed, 6) for feed in feeds])
        assert {feed for one in outcomes for feed in one.failed} == lost
        answers = no_copies.read(feeds, 0, 10)
        assert {answer.name for answer in answers if answer.status == "error"} == lost
        assert {answer.status for answer in answers if answer.name not in lost} == {"hit"}
        with pytest.raises(Unavailable):
            no_copies.check()
        no_copies.close()
        place.close()


def test_a_write_that_no_replica_received_is_reported_as_unknown(valkey):
    store = RedisFeedStore(valkey.url, LIMITS, ManualClock(), replicas=1, wait_ms=10)
    (applied,) = store.apply([install(0, "uncopied", 1)])
    assert isinstance(applied.failed["uncopied"], OutcomeUnknown)
    assert get(store, "uncopied") == [1]
    store.close()


# -- positions and connections


@pytest.mark.parametrize("kind", ["valkey", "valkey_cluster"])
def test_a_master_that_has_started_since_saves_no_position(kind, request):
    """It may lack what the position covers."""
    place = ValkeyPlace(request.getfixturevalue(kind))
    store = place.open()
    seen = store.incarnation()
    for one in seen.split(" "):
        store.save_positions(one, {0: Position(1, 5), 1: Position(1, 9)}, seen)
        with pytest.raises(Unavailable, match="started again"):
            store.save_positions(one, {0: Position(1, 7)}, seen.replace(one, "0" * 40))
        assert store.positions(one) == {0: Position(1, 5), 1: Position(1, 9)}
        store.save_positions(one, {0: Position(1, 7)}, seen)
        assert store.positions(one) == {0: Position(1, 7), 1: Position(1, 9)}
    place.close()


def test_every_master_has_the_position_and_the_lowest_counts(valkey_cluster):
    place = ValkeyPlace(valkey_cluster)
    store = place.open()
    store.save_positions("fanout", {0: Position(1, 5), 1: Position(1, 9)})
    store.save_positions("fanout", {0: Position(1, 7)})
    masters = [node for node in valkey_cluster.nodes if node.is_master]
    keys = [node.execute("KEYS", "*positions:fanout") for node in masters]
    assert [len(found) for found in keys] == [1, 1, 1]
    masters[0].execute("HSET", keys[0][0], "0", "1 6", "1", "2 0")
    masters[1].execute("HDEL", keys[1][0], "1")
    assert store.positions("fanout") == {0: Position(1, 6)}
    masters[2].flush()
    assert store.positions("fanout") == {}
    place.close()


def test_the_address_of_the_settings_decides_about_the_store(valkey, tmp_path):
    databases, clock = Databases(tmp_path), ManualClock()
    store = connect(FeedSettings(url=valkey.url), databases, clock)
    assert isinstance(store, RedisFeedStore)
    store.check()
    store.close()
    with pytest.raises(Invalid, match="redis"):
        connect(FeedSettings(url="mysql://user:secret@host"), databases, clock)
