"""Operations as events of `feeds.operations`."""

from __future__ import annotations

import pytest

from strandline.errors import Invalid
from strandline.feeds import operation_log
from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    DropFeed,
    Entry,
    MergeEntries,
    SetFeed,
    UnmergeEntries,
)

TIME = 1_700_000_000_000 << 20
ENTRIES = (Entry(2**63 - 1, b"\xff"), Entry(-(2**63)), Entry(0, b""))
OPERATIONS = [
    AppendEntry(TIME, ENTRIES[0], ("ada", "bob")),
    DeleteEntry(TIME, -5, ("ada", "bob")),
    SetFeed(TIME, "ada", ENTRIES),
    SetFeed(TIME, "ada", ()),
    MergeEntries(TIME, "ada", ENTRIES),
    UnmergeEntries(TIME, "ada", (2**63 - 1, -1)),
    DropFeed(TIME, "ada"),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: type(one).__name__)
def test_an_operation_is_read_from_its_event(operation):
    (event,) = operation_log.encoded(operation, 999_000)
    assert operation_log.decoded(event) == operation
    assert operation_log.to_operation(operation_log.recorded(operation)) == operation


def test_a_large_append_is_split_by_feeds():
    names = tuple(f"{number:0255}" for number in range(10_000))
    events = [*operation_log.encoded(AppendEntry(TIME, Entry(1, b"x" * 65_536), names), 999_000)]
    assert len(events) == 3
    assert max(map(len, events)) <= 999_000
    assert tuple(name for event in events for name in operation_log.decoded(event).feeds) == names


def test_a_large_set_is_split_by_entries():
    entries = tuple(Entry(number, b"x" * 65_536) for number in range(40))
    events = [*operation_log.encoded(SetFeed(TIME, "ada", entries), 999_000)]
    assert max(map(len, events)) <= 999_000
    assert tuple(entry for event in events for entry in operation_log.decoded(event).entries) == entries


@pytest.mark.parametrize(
    "event",
    [
        b"{}",
        b"x",
        b'{"operation":"append","operation_time":"x","feeds":["a"],"entries":[{"id":"1"}]}',
        b'{"operation":"append","operation_time":"1","feeds":["a"]}',
        b'{"operation":"drop","operation_time":"1","feeds":[]}',
        b'{"operation":"sing","operation_time":"1","feeds":["a"]}',
    ],
)
def test_other_events_are_invalid(event):
    with pytest.raises(Invalid, match="no operation on feeds"):
        operation_log.decoded(event)
