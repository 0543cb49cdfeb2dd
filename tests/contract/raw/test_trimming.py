"""Trimming: only what is both old and replicated is deleted, on every engine."""

from __future__ import annotations

import pytest

from raw_records import append
from services import until
from strandline.clock import ManualClock
from strandline.errors import Gap
from strandline.log.cursors import Position
from strandline.log.records import NewRecords

DAY_MS = 86_400_000


def add(raw, clock: ManualClock, *values: bytes, partition: int = 0) -> list[Position]:
    """Append each value in an append of its own, in a form in which it can be deleted alone."""
    return [append(raw, "accounts", partition, NewRecords(clock.now_ms(), [value]))[0] for value in values]


def values(raw, after: Position | None, partition: int = 0) -> list[bytes]:
    found = raw.read("accounts", partition, after, raw.end("accounts", partition))
    return [value for batch in found for value in batch.values]


@pytest.fixture
def accounts(raw):
    raw.create("accounts", 2)
    return raw


def test_records_are_trimmed_up_to_the_age_and_the_replicated_position(accounts, clock):
    """Whichever comes first. The other partition has no position and is left alone."""
    old = add(accounts, clock, b"0", b"1", b"2")
    add(accounts, clock, b"x", partition=1)
    clock.advance(DAY_MS)
    new = add(accounts, clock, b"3", b"4")
    assert accounts.trim("accounts", {0: old[1]}, clock.now_ms()) == 2
    assert accounts.first("accounts", 0) == old[2]
    assert accounts.trim("accounts", {0: new[1]}, clock.now_ms()) == 1
    assert accounts.first("accounts", 0) == new[0]
    assert values(accounts, old[2]) == [b"3", b"4"]
    assert values(accounts, None, partition=1) == [b"x"]
    assert accounts.trim("accounts", {0: new[1]}, clock.now_ms()) == 0


def test_what_was_trimmed_is_a_gap(accounts, clock):
    """For a read that needs it; not for one that starts after it."""
    old = add(accounts, clock, b"0", b"1", b"2")
    clock.advance(1)
    accounts.trim("accounts", {0: old[1]}, clock.now_ms())
    for start in (None, old[0]):
        with pytest.raises(Gap) as raised:
            values(accounts, start)
        assert raised.value.info["partition"] == 0
    assert values(accounts, old[1]) == [b"2"]


def test_everything_may_be_trimmed(accounts, clock):
    """The end stays where it was."""
    (last,) = add(accounts, clock, b"0")
    clock.advance(1)
    assert accounts.trim("accounts", {0: last}, clock.now_ms()) == 1
    assert accounts.end("accounts", 0) == last
    assert values(accounts, last) == []
    assert add(accounts, clock, b"1") == [Position(last.order, last.offset + 1)]


def test_a_closed_timeline_is_removed_when_all_of_it_is_replicated(platform, accounts, clock):
    """In every partition that has records. Its topic is deleted by the next sweep."""
    old = add(accounts, clock, b"0", b"1")
    other = add(accounts, clock, b"x", partition=1)
    platform.log.admin.switch("accounts", "second")
    topic = platform.log.timelines("accounts")[0].topic
    clock.advance(DAY_MS)
    new = add(accounts, clock, b"2")
    for replicated in ({}, {0: new[0]}, {0: old[0], 1: other[0]}):
        accounts.trim("accounts", replicated, clock.now_ms())
        assert platform.log.timelines("accounts")[0].cleaned_up_at is None
    accounts.trim("accounts", {0: old[1], 1: other[0]}, clock.now_ms())
    assert platform.log.timelines("accounts")[0].cleaned_up_at is not None
    platform.log.upkeep.run()
    storage = platform.log._storages.get("first")
    until(lambda: _is_missing(storage, topic), "the deletion of the topic")
    assert values(accounts, old[1]) == [b"2"]
    with pytest.raises(Gap):
        values(accounts, None)


def _is_missing(storage, topic: str) -> bool:
    try:
        storage.bounds(topic)
    except Exception as error:  # noqa: BLE001 - the assertion shows it
        return type(error).__name__ == "NotFound"
    return False


def test_nothing_else_expires(platform, accounts, clock):
    """However old it is, and however often the log cleans up."""
    add(accounts, clock, b"0")
    platform.log.admin.switch("accounts", "second")
    add(accounts, clock, b"1")
    clock.advance(1000 * DAY_MS)
    platform.log.upkeep.run()
    assert values(accounts, None) == [b"0", b"1"]
