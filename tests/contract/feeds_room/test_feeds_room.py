"""The contract of the feeds room, in process and over HTTP."""

from __future__ import annotations

import time

import msgspec
import pytest

from strandline.errors import Invalid, Miss, NotFound
from strandline.feeds import Entry
from strandline.feeds.model import AppendEntry
from strandline.feeds.operation_log import OPERATIONS

LARGE = [-(2**63), -(2**53) - 1, 0, 2**53 + 1, 2**63 - 1]


def ids(entries) -> list[int]:
    return [entry.id for entry in entries]


def recorded(rooms) -> list[dict]:
    return [event for batch in rooms.log.read(OPERATIONS) for event in batch.events]


def test_an_entry_reaches_the_feeds_that_exist(feeds, feed, new):
    other, missing = new(), new()
    feeds.set(other, [])
    assert feeds.append(Entry(7, b"\x00\xff"), [feed, other, missing, feed]) == 2
    assert feeds.get(feed) == feeds.get(other) == [Entry(7, b"\x00\xff")]


def test_a_miss_is_not_an_empty_hit(feeds, feed, new):
    missing = new()
    assert feeds.get(feed) == feeds.get_since(feed, 5) == []
    for read in (lambda: feeds.get(missing), lambda: feeds.get_since(missing, 5)):
        with pytest.raises(Miss, match=missing) as caught:
            read()
        assert isinstance(caught.value, NotFound)
    found = feeds.get_many([missing, feed])
    assert [(one.name, one.status, one.entries, one.error) for one in found] == [
        (missing, "miss", (), None),
        (feed, "hit", (), None),
    ]


def test_pages_are_by_position(feeds, feed):
    feeds.set(feed, [Entry(n) for n in range(100)])
    assert ids(feeds.get(feed)) == [*range(99, 79, -1)]
    assert ids(feeds.get(feed, 20, 20)) == [*range(79, 59, -1)]
    assert ids(feeds.get(feed, 90, 20)) == [*range(9, -1, -1)]
    assert ids(feeds.get_many([feed], 98, 5)[0].entries) == [1, 0]


def test_ids_of_64_bits_stay_exact(feeds, feed):
    for entry_id in LARGE:
        feeds.append(Entry(entry_id), [feed])
    assert ids(feeds.get(feed)) == sorted(LARGE, reverse=True)
    assert ids(feeds.get_since(feed, 2**53)) == [2**63 - 1, 2**53 + 1]
    feeds.delete(2**63 - 1, [feed])
    feeds.unmerge(feed, [-(2**63)])
    assert ids(feeds.get(feed)) == sorted(LARGE[1:-1], reverse=True)


def test_empty_metadata_stay_empty_and_none_stay_none(feeds, feed):
    feeds.merge(feed, [Entry(1), Entry(2, b""), Entry(3, b"x" * 65_536)])
    assert [entry.metadata for entry in feeds.get(feed)] == [b"x" * 65_536, b"", None]


def test_entries_and_names_may_come_from_generators(feeds, feed):
    feeds.set(feed, (Entry(number) for number in range(3)))
    feeds.merge(feed, map(Entry, [3, 4]))
    feeds.unmerge(feed, iter([0, Entry(1)]))
    feeds.append(Entry(5), iter([feed]))
    (answer,) = feeds.get_many(iter([feed]))
    assert ids(answer.entries) == [5, 4, 3, 2]


def test_new_since_an_entry(feeds, feed):
    for entry_id in (10, 20, 30, 15):
        feeds.append(Entry(entry_id), [feed])
    feeds.merge(feed, [Entry(5)])
    assert ids(feeds.get_since(feed, 20)) == [30, 15]


def test_a_delete_is_final(feeds, feed, new):
    feeds.append(Entry(1), [feed])
    assert feeds.delete(Entry(1), [feed, new()]) == 1
    feeds.append(Entry(1), [feed])
    feeds.set(feed, [Entry(1), Entry(2)])
    assert ids(feeds.get(feed)) == [2]


def test_a_follow_and_an_unfollow(feeds, feed, new):
    """An unfollow and a follow keep their order, however quickly they come."""
    missing = new()
    posts = [Entry(1), Entry(2)]
    for _ in range(20):
        assert feeds.merge(feed, posts) is True
        assert ids(feeds.get(feed)) == [2, 1]
        assert feeds.unmerge(feed, posts) is True
        assert feeds.get(feed) == []
    assert feeds.merge(missing, posts) is False
    assert feeds.unmerge(missing, [1]) is False


def test_a_set_replaces_and_a_drop_removes(feeds, feed):
    feeds.append(Entry(1), [feed])
    feeds.set(feed, [Entry(2)])
    assert ids(feeds.get(feed)) == [2]
    feeds.drop(feed)
    assert feeds.get_many([feed])[0].status == "miss"
    assert feeds.append(Entry(3), [feed]) == 0


def test_a_replay_keeps_its_operation_time(feeds, feed):
    """A set of the past does not remove what was appended since, and an append of the past stays hidden."""
    now_ms = time.time_ns() // 1_000_000
    first = feeds.operation_time()
    feeds.append(Entry(1), [feed])
    feeds.set(feed, [Entry(9)], operation_time=first)
    assert ids(feeds.get(feed)) == [9, 1]
    feeds.unmerge(feed, [5])
    feeds.append(Entry(5), [feed], operation_ms=now_ms - 1000)
    feeds.append(Entry(6), [feed], operation_time=feeds.operation_time())
    feeds.drop(feed, operation_ms=now_ms - 1000)
    assert ids(feeds.get(feed)) == [9, 6, 1]


def test_operation_times_rise(feeds):
    given = [feeds.operation_time() for _ in range(5)]
    assert given == sorted(set(given))


def test_every_write_is_recorded_before_it_is_applied(rooms, feeds, new):
    """One event for each, with the time and exact ids."""
    name = new()
    feeds.set(name, [Entry(2**63 - 1, b"\xff"), Entry(-5)], operation_time=feeds.operation_time())
    feeds.append(Entry(3), [name])
    feeds.delete(3, [name])
    feeds.merge(name, [Entry(4)])
    feeds.unmerge(name, [4])
    feeds.drop(name)
    own = [event for event in recorded(rooms) if event["feeds"] == [name]]
    assert [event["operation"] for event in own] == ["set", "append", "delete", "merge", "unmerge", "drop"]
    assert own[0]["entries"] == [{"id": "9223372036854775807", "metadata": "/w=="}, {"id": "-5"}]
    times = [int(event["operation_time"]) for event in own]
    assert times == sorted(set(times))


def test_an_operation_older_than_the_grace_time_is_refused_and_kept(feeds, feed):
    old_ms = time.time_ns() // 1_000_000 - 11 * 86_400_000
    before = feeds.dead_letters(limit=10_000)
    with pytest.raises(Invalid, match="dead letter"):
        feeds.append(Entry(1, b"x"), [feed], operation_ms=old_ms)
    (letter,) = feeds.dead_letters(after=before[-1].number if before else 0)
    assert letter.operation == AppendEntry(old_ms << 20, Entry(1, b"x"), (feed,))
    assert "grace_ms" in letter.reason
    assert feeds.get(feed) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 256, "a\n", "{a}"])
def test_bad_names_are_refused(feeds, feed, name):
    for call in (
        lambda: feeds.set(name, []),
        lambda: feeds.get(name),
        lambda: feeds.append(Entry(1), [feed, name]),
        lambda: feeds.get_many([name]),
    ):
        with pytest.raises(Invalid):
            call()
    assert feeds.get(feed) == []


def test_unusual_names_are_fine(feeds):
    for name in ("...", "get", "a:b", "-", "merge", "A.b_c-9", "x" * 255):
        feeds.set(name, [Entry(1)])
        assert ids(feeds.get(name)) == [1]
        feeds.drop(name)


@pytest.mark.parametrize(
    "entry", [Entry("7"), Entry(True), Entry(7.0), Entry(None), Entry(7, "text"), Entry(7, bytearray(b"x"))]
)
def test_values_of_another_type_are_refused_before_they_are_stored(feeds, feed, entry):
    """Otherwise the feed could not be read any more."""
    for write in (
        lambda: feeds.append(entry, [feed]),
        lambda: feeds.set(feed, [entry]),
        lambda: feeds.merge(feed, [entry]),
    ):
        with pytest.raises(Invalid):
            write()
    assert feeds.get(feed) == []


def test_a_text_is_no_list_of_feeds(feeds, feed):
    with pytest.raises(Invalid, match="list of names"):
        feeds.append(Entry(1), feed)
    with pytest.raises(Invalid, match="list of names"):
        feeds.get_many(feed)
    with pytest.raises(Invalid, match="must be integers"):
        feeds.get(feed, 0.5)


def test_limits(feeds, feed):
    many = [f"nobody:{number}" for number in range(10_001)]
    for call in (
        lambda: feeds.append(Entry(2**63), [feed]),
        lambda: feeds.delete(-(2**63) - 1, [feed]),
        lambda: feeds.get_since(feed, 2**63),
        lambda: feeds.append(Entry(1, b"x" * 65_537), [feed]),
        lambda: feeds.set(feed, [Entry(n) for n in range(2001)]),
        lambda: feeds.merge(feed, [Entry(n) for n in range(2001)]),
        lambda: feeds.unmerge(feed, [Entry(1, b"x" * 65_537)]),
        lambda: feeds.delete(Entry(1, b"x" * 65_537), [feed]),
        lambda: feeds.append(Entry(1), many),
        lambda: feeds.get(feed, -1, 5),
        lambda: feeds.get(feed, 0, -1),
        lambda: feeds.append(Entry(1), [feed], operation_ms=-1),
        lambda: feeds.append(Entry(1), [feed], operation_time=2**63),
        lambda: feeds.append(Entry(1), [feed], operation_time=1 << 60, operation_ms=5),
    ):
        with pytest.raises(Invalid):
            call()
    assert feeds.get(feed) == []
    assert feeds.append(Entry(1), [*many[:9999], feed, feed]) == 1
    assert feeds.append(Entry(1), []) == 0


def test_an_answer_that_may_become_too_large_is_refused(feeds, feed):
    """A feed has at most 800 entries (`feeds.cap`), whatever the length is."""
    names = [feed, *(f"nobody:{number}" for number in range(9_999))]
    assert len(feeds.get_many([*names, feed], 0, 20)) == 10_000
    assert len(feeds.get_many(names[:250], 0, 2**31 - 1)) == 250
    for count, length in ((10_000, 21), (251, 800), (251, 2**31 - 1)):
        with pytest.raises(Invalid, match="at most 200000; split it into calls with fewer feeds"):
            feeds.get_many(names[:count], 0, length)


def test_a_large_operation_is_recorded_in_parts(rooms, feeds, new):
    """2,000 entries with 1 KB of metadata each are more than an event may have."""
    name = new()
    feeds.set(name, [Entry(n, b"x" * 1000) for n in range(2000)])
    assert len(feeds.get(name, 0, 1000)) == 800
    own = [event for event in recorded(rooms) if event["feeds"] == [name]]
    assert len(own) > 1
    assert len({event["operation_time"] for event in own}) == 1
    assert [entry["id"] for event in own for entry in event["entries"]] == [str(n) for n in range(2000)]
    assert all(len(msgspec.json.encode(event)) < 1_000_000 for event in own)
