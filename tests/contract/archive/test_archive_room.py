"""The archive room of a platform: a process of it, the grid of hours, checks, replays, retirement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from archive_place import NOON

from strandline.archive.model import HOUR_MS, Counts
from strandline.archive.room import HourStatus, configured
from strandline.clock import ManualClock, to_rfc3339
from strandline.config import ArchiveSettings, Settings
from strandline.errors import Conflict, Invalid, NotFound
from strandline.log import EventType
from strandline.platform import Platform

ONE = NOON + HOUR_MS


@pytest.fixture
def open_platform(tmp_path) -> Iterator[Callable[..., Platform]]:
    opened: list[Platform] = []
    clock = ManualClock(NOON)

    def one(**archive: Any) -> Platform:
        settings = Settings(archive=replace(ArchiveSettings(look_back_hours=2), **archive))
        opened.append(Platform(tmp_path / "data", settings, clock))
        return opened[-1]

    yield one
    for platform in opened:
        platform.close()


@pytest.fixture
def platform(open_platform) -> Platform:
    """With an event type that has existed for a while, and an hour of it archived."""
    platform = open_platform()
    platform.log.create(EventType("orders", category="business"))
    publish(platform, NOON + 1, NOON + 2)
    platform.clock.advance(HOUR_MS + 60_000)
    platform.archive.process().once()
    return platform


def publish(platform: Platform, *times_ms: int, name: str = "orders") -> None:
    events = [
        {"metadata": {"eid": f"00000000-0000-0000-0000-{number:012d}", "occurred_at": to_rfc3339(time_ms)}}
        for number, time_ms in enumerate(times_ms)
    ]
    platform.log.publish(name, events).raise_for_failed()


def test_once_archives_what_is_there_and_flags_what_is_complete(platform: Platform):
    """Also the hour above; files are in the data directory."""
    root = platform.data / "archive"
    assert (root / "2024-05-01/12/orders/_READY").exists()
    assert (root / "2024-05-01/12/_READY").exists()
    assert [path.path for path in platform.archive.periods(NOON, ONE)] == ["2024-05-01/12"]
    assert len([*root.rglob("*.parquet")]) == 1


def test_the_grid_shows_every_hour_since_the_event_type_was_made(platform: Platform):
    """What is ready, what is due and why not, what is not over yet."""
    (status,) = platform.archive.status(NOON - 5 * HOUR_MS, ONE + 2 * HOUR_MS)
    assert (status.event_type, status.retired, status.counts) == ("orders", False, Counts(2, 2))
    assert status.hours == (
        HourStatus("2024-05-01T12:00:00.000Z", "ready", 1),
        HourStatus("2024-05-01T13:00:00.000Z", "open"),
        HourStatus("2024-05-01T14:00:00.000Z", "open"),
    )
    (partition,) = status.partitions
    assert (partition.cursor, partition.unarchived_events) == ("001-0001-000000000000000001", 0)
    publish(platform, ONE + 1)
    platform.clock.advance(HOUR_MS)
    (status,) = platform.archive.status(ONE, ONE + 1)
    assert status.hours == (HourStatus("2024-05-01T13:00:00.000Z", "due", reason="the barrier is not read yet"),)
    assert status.partitions[0].unarchived_events == 1


def test_the_grid_shows_what_does_not_exist(open_platform):
    """It is configured, so it blocks; a platform without an archive has an empty grid."""
    platform = open_platform(event_types="ghosts")
    assert platform.archive.status(0, 2 * NOON) == []
    platform.clock.advance(HOUR_MS)
    with pytest.raises(NotFound, match="'ghosts' does not exist"):
        platform.archive.process().once()
    (status,) = platform.archive.status(NOON, ONE)
    assert status.hours == (HourStatus("2024-05-01T12:00:00.000Z", "due", reason="the event type does not exist"),)


def test_an_event_type_that_was_deleted_can_be_looked_at(platform: Platform):
    """What is archived of it stays; one made anew is another one."""
    platform.log.delete("orders")
    (status,) = platform.archive.status(NOON, ONE)
    assert (status.hours[0].state, status.partitions[0].unarchived_events) == ("ready", None)
    platform.log.create(EventType("orders", category="business"))
    (status,) = platform.archive.status(NOON, ONE)
    assert status.partitions[0].unarchived_events is None


def test_flagged_hours_are_verified(platform: Platform):
    """Others are left out."""
    (check,) = platform.archive.verify("orders", 0, 2 * NOON)
    assert (check.ok, check.rows) == (True, 2)
    next((platform.data / "archive").rglob("*.parquet")).unlink()
    (check,) = platform.archive.verify("orders", 0, 2 * NOON)
    assert not check.ok


def test_archived_hours_are_published_into_another_event_type(platform: Platform):
    """With their ids and times; what was added on reception is added anew."""
    platform.log.create(EventType("again", category="business"))
    (done,) = platform.archive.replay("orders", NOON, ONE, "again")
    assert done.events == 2
    events = [event for batch in platform.log.read("again") for event in batch.events]
    assert [event["metadata"]["eid"][-1] for event in events] == ["0", "1"]
    assert {event["metadata"]["event_type"] for event in events} == {"again"}


def test_a_replay_needs_an_archive_a_target_and_ready_hours(platform: Platform):
    """Each is said at once, but for the last."""
    with pytest.raises(NotFound, match="'other' is not archived"):
        platform.archive.replay("other", NOON, ONE, "orders")
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        platform.archive.replay("orders", NOON, ONE, "nowhere")
    with pytest.raises(Conflict, match="not ready"):
        [*platform.archive.replay("orders", NOON, ONE + HOUR_MS, "orders")]


def test_a_retired_event_type_owes_no_more_hours(platform: Platform, open_platform):
    """From the next hour on; the present one is still archived, by whoever archives others."""
    with pytest.raises(Conflict, match="still names 'orders'"):
        platform.archive.retire("orders")
    other = open_platform(event_types="*,-orders")
    other.archive.retire("orders")
    publish(other, ONE + 1)
    other.clock.advance(3 * HOUR_MS)
    other.archive.process().once()
    (status,) = other.archive.status(NOON, NOON + 24 * HOUR_MS)
    assert (status.retired, [hour.state for hour in status.hours]) == (True, ["ready", "ready"])
    assert status.counts == Counts(3, 3)
    publish(other, other.clock.now_ms())
    other.clock.advance(HOUR_MS)
    other.archive.process().once()
    assert other.archive.status(NOON, ONE)[0].counts == Counts(3, 3)


def test_an_event_type_that_is_gone_can_be_retired(platform: Platform):
    """What is not flagged by then never will be, and blocks nobody."""
    platform.clock.advance(5 * HOUR_MS)
    platform.log.delete("orders")
    platform.archive.retire("orders")
    assert [(term.from_ms, term.to_ms) for term in platform.archive.ledger.terms()] == [(NOON, ONE)]
    with pytest.raises(NotFound, match="is not archived"):
        platform.archive.retire("orders")


def test_an_event_type_that_comes_back_starts_where_it_was_retired(platform: Platform, open_platform):
    """Hours in between are nobody's."""
    other = open_platform(event_types="-orders")
    other.archive.retire("orders")
    other.clock.advance(5 * HOUR_MS)
    platform.archive.process().once()
    terms = [(term.from_ms, term.to_ms) for term in platform.archive.ledger.terms()]
    assert terms == [(NOON, ONE + HOUR_MS), (ONE + 3 * HOUR_MS, None)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("*", ["a", "b"]),
        ("", []),
        ("a", ["a"]),
        (" a , c ", ["a", "c"]),
        ("*,c", ["a", "b", "c"]),
        ("*,-a", ["b"]),
        ("a,b,-a", ["b"]),
    ],
)
def test_the_setting_names_event_types(text, names):
    """All, some, all but some; also such that are not there yet."""
    assert configured(text, ["b", "a"]) == names


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("ready_rule", "soon", "archive.ready_rule must be one of barrier, timestamps"),
        ("ready_rule", "seed", "the rule 'seed' is now called 'timestamps'"),
        ("late", "never", "archive.late must be one of append, quarantine, drop"),
        ("on_unavailable", "fail", "archive.on_unavailable must be one of earliest, latest"),
        ("grace_ms", HOUR_MS, "must be shorter"),
        ("template", "%Y", "archive.template"),
        ("time_field", "a|b", "archive.time_field"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(open_platform, setting, value, message):
    """Before anything is archived."""
    with pytest.raises(Invalid, match=message):
        open_platform(**{setting: value}).archive.process()


def test_values_can_be_told_as_json(platform: Platform):
    """For the server and the command line."""
    status = platform.archive.status(NOON, ONE + HOUR_MS)
    told = msgspec.json.decode(msgspec.json.encode(status))
    assert told[0]["hours"] == [
        {"hour": "2024-05-01T12:00:00.000Z", "state": "ready", "revision": 1},
        {"hour": "2024-05-01T13:00:00.000Z", "state": "open"},
    ]
