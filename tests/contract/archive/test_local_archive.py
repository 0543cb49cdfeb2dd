"""The archive of this process: archiving, replays, retirement, and the status as time passes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from archive_place import NOON

from strandline.archive.model import HOUR_MS, Counts
from strandline.archive.options import configured
from strandline.archive.room import HourReport, HourStatus
from strandline.archive.settings import ArchiveSettings
from strandline.clock import ManualClock, to_rfc3339
from strandline.errors import Conflict, Invalid, NotFound, Unavailable
from strandline.log import EventType
from strandline.log.cursors import Position
from strandline.platform import Platform
from strandline.settings import Settings

ONE = NOON + HOUR_MS
HOUR_13 = "2024-05-01T13"


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
    """A platform with an event type of which one hour is archived."""
    platform = open_platform()
    platform.log.create(EventType("orders", category="business"))
    publish(platform, NOON + 1, NOON + 2)
    platform.clock.advance(HOUR_MS + 60_000)
    platform.archive.process().once()
    return platform


def test_topics_of_journals_are_not_archived(platform):
    """Their records are actions, with binary values or none."""
    platform.journals.create("accounts")
    platform.journal("accounts").append("one", [{"n": 1}], expected=0)
    platform.clock.advance(2 * HOUR_MS)
    platform.archive.process().once()
    assert [status.event_type for status in platform.archive.status()] == ["orders"]


def publish(platform: Platform, *times_ms: int, name: str = "orders") -> None:
    events = [
        {"metadata": {"eid": f"00000000-0000-0000-0000-{number:012d}", "occurred_at": to_rfc3339(time_ms)}}
        for number, time_ms in enumerate(times_ms)
    ]
    platform.log.publish(name, events).raise_for_failed()


def test_once_archives_what_is_there_and_flags_what_is_complete(platform: Platform):
    """The hour above is flagged too; the files are in the data directory."""
    root = platform.data / "archive"
    assert (root / "2024-05-01/12/orders/_READY").exists()
    assert (root / "2024-05-01/12/_READY").exists()
    assert [period.path for period in platform.archive.periods("2024-05-01T12", HOUR_13)] == ["2024-05-01/12"]
    assert len([*root.rglob("*.parquet")]) == 1


def test_hours_pass_from_open_to_due_to_ready(platform: Platform):
    """An hour is open until it ends, then due until the archive has flagged it."""
    assert [*platform.archive.hours("orders")] == [
        HourStatus("2024-05-01T12", "ready", 1),
        HourStatus(HOUR_13, "open"),
    ]
    publish(platform, ONE + 1)
    platform.clock.advance(HOUR_MS)
    due = HourStatus(HOUR_13, "due", reason="the barrier is not read yet")
    assert [*platform.archive.hours("orders", HOUR_13)] == [due, HourStatus("2024-05-01T14", "open")]
    (status,) = platform.archive.status()
    assert (status.due, status.last_ready, status.lag) == ((due,), "2024-05-01T12", 1)
    platform.archive.process().once()
    (status,) = platform.archive.status()
    assert (status.due_hours, status.due, status.last_ready, status.lag) == (0, (), HOUR_13, 0)
    assert status.partitions[0].cursor == "001-0001-000000000000000002"


def test_what_an_archive_measures(platform: Platform):
    """Its lag, its newest ready hour and the hours that are due, as they were when they were last measured."""
    (chore,) = platform.archive.chores()
    assert not any(platform.archive.gauges().values())
    publish(platform, ONE + 1)
    platform.clock.advance(2 * HOUR_MS)
    chore.run()
    found = {metric.name: dict(values) for metric, values in platform.archive.gauges().items()}
    (status,) = platform.archive.status()
    assert found == {
        "strandline_archive_lag": {"orders": 1},
        "strandline_archive_last_ready_seconds": {"orders": NOON / 1000},
        "strandline_archive_due_hours": {"orders": status.due_hours},
    }
    assert status.due_hours > 0


def test_many_due_hours_are_counted_and_the_oldest_shown(platform: Platform):
    """The status counts all due hours and shows the oldest; the list returns each hour once."""
    platform.clock.advance(2000 * HOUR_MS)
    (status,) = platform.archive.status()
    assert (status.due_hours, len(status.due)) == (2000, 24)
    assert (status.due[0].hour, status.due[-1].hour) == (HOUR_13, "2024-05-02T12")
    hours = [hour.hour for hour in platform.archive.hours("orders", state="due")]
    assert (len(hours), len({*hours}), hours[0]) == (2000, 2000, HOUR_13)


def test_an_hour_whose_flag_is_decided_but_not_written_is_due(platform: Platform):
    """A crash between the decision and the write leaves no `_READY`."""
    platform.clock.advance(HOUR_MS)
    ledger = platform.archive.ledger
    claim = ledger.claim("orders", platform.log.types.entry("orders").id)
    ledger.hours.flag(claim, ONE, "2024-05-01/13/orders")
    (status,) = platform.archive.status()
    assert (status.due_hours, [hour.hour for hour in status.due]) == (1, [HOUR_13])
    assert status.last_ready == "2024-05-01T12"
    assert not platform.archive.is_ready("orders", HOUR_13)


def test_the_status_shows_what_does_not_exist(open_platform):
    """A configured event type that does not exist has due hours."""
    platform = open_platform(event_types="ghosts")
    platform.clock.advance(HOUR_MS)
    with pytest.raises(NotFound, match="'ghosts' does not exist"):
        platform.archive.process().once()
    (status,) = platform.archive.status()
    assert (status.lag, status.last_ready, status.partitions) == (None, None, ())
    assert status.due[-1] == HourStatus("2024-05-01T12", "due", reason="the event type does not exist")


def test_an_event_type_that_was_deleted_can_be_looked_at(platform: Platform):
    """Its archived hours stay; a new event type of the same name is a different one."""
    platform.log.delete("orders")
    (status,) = platform.archive.status()
    assert (status.last_ready, status.lag, status.partitions[0].unarchived_events) == ("2024-05-01T12", None, None)
    platform.log.create(EventType("orders", category="business"))
    (status,) = platform.archive.status()
    assert status.partitions[0].unarchived_events is None


def test_a_long_check_is_done_in_parts(platform: Platform, monkeypatch):
    """A check may stop after each file; a new revision restarts it."""
    platform.log.create(EventType("wide", category="business", partitions=3, partition_strategy="user_defined"))
    for partition in range(3):
        metadata = {"eid": str(uuid.uuid4()), "occurred_at": to_rfc3339(ONE), "partition": str(partition)}
        platform.log.publish("wide", [{"metadata": metadata}]).raise_for_failed()
    platform.clock.advance(HOUR_MS)
    platform.archive.process().once()
    monkeypatch.setattr("strandline.archive.local._CHECK_SECONDS", 0)
    assert platform.archive.check("wide", HOUR_13).next
    (check,) = platform.archive.verify("wide")
    assert (check.ok, check.files, check.rows, check.next) == (True, 3, 3, "")
    parts = [msgspec.structs.replace(check, revision=revision, next="x") for revision in (1, 2)]
    parts += [msgspec.structs.replace(check, revision=2)]
    monkeypatch.setattr(platform.archive, "check", lambda *_: parts.pop(0))
    assert [*platform.archive.verify("wide")] == [msgspec.structs.replace(check, revision=2)]


def test_a_wait_outlasts_a_short_outage(platform: Platform, monkeypatch):
    """A wait retries during a short outage and fails after a long one."""
    answers: list[Exception | None] = [Unavailable("restarting"), None]
    look = platform.archive.hour

    def hour(*given: Any) -> HourReport:
        if answers and (error := answers.pop(0)):
            raise error
        return look(*given)

    monkeypatch.setattr(platform.archive, "hour", hour)
    monkeypatch.setattr("strandline.archive.room._POLL_SECONDS", 0)
    assert platform.archive.wait("orders", "2024-05-01T12").rows == 2
    monkeypatch.setattr("strandline.archive.room._RETRY_SECONDS", 0)
    answers.append(Unavailable("down"))
    with pytest.raises(Unavailable, match="down"):
        platform.archive.wait("orders", "2024-05-01T12")


def test_archived_hours_are_published_into_another_event_type(platform: Platform):
    """A replay keeps ids and times; publishing adds the other metadata again."""
    platform.log.create(EventType("again", category="business"))
    (done,) = platform.archive.replay("orders", "2024-05-01T12", HOUR_13, "again")
    assert done.events == 2
    events = [event for batch in platform.log.read("again") for event in batch.events]
    assert [event["metadata"]["eid"][-1] for event in events] == ["0", "1"]
    assert {event["metadata"]["event_type"] for event in events} == {"again"}


def test_a_replay_needs_an_archive_a_target_and_ready_hours(platform: Platform):
    """A missing archive or target fails at the call, an hour that is not ready during the iteration."""
    with pytest.raises(NotFound, match="'other' is not archived"):
        platform.archive.replay("other", "2024-05-01T12", HOUR_13, "orders")
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        platform.archive.replay("orders", "2024-05-01T12", HOUR_13, "nowhere")
    with pytest.raises(Conflict, match="not ready"):
        [*platform.archive.replay("orders", "2024-05-01T12", "2024-05-01T14", "orders")]


def test_a_retired_event_type_owes_no_more_hours(platform: Platform, open_platform):
    """Retirement starts with the next hour; a process that archives others still archives the current one."""
    with pytest.raises(Conflict, match="still names 'orders'"):
        platform.archive.retire("orders")
    other = open_platform(event_types="*,-orders")
    other.archive.retire("orders")
    publish(other, ONE + 1)
    other.clock.advance(3 * HOUR_MS)
    other.archive.process().once()
    (status,) = other.archive.status()
    assert (status.retired, [hour.state for hour in other.archive.hours("orders")]) == (True, ["ready", "ready"])
    assert status.counts == Counts(3, 3)
    publish(other, other.clock.now_ms())
    other.clock.advance(HOUR_MS)
    other.archive.process().once()
    assert other.archive.status()[0].counts == Counts(3, 3)


def test_an_event_type_that_is_gone_can_be_retired(platform: Platform):
    """Unflagged hours of a deleted event type are never flagged and no longer block."""
    platform.clock.advance(5 * HOUR_MS)
    platform.log.delete("orders")
    platform.archive.retire("orders")
    assert [(term.from_ms, term.to_ms) for term in platform.archive.ledger.terms()] == [(NOON, ONE)]
    with pytest.raises(NotFound, match="is not archived"):
        platform.archive.retire("orders")


def test_an_event_type_that_comes_back_starts_where_it_was_retired(platform: Platform, open_platform):
    """Hours between the two terms are not due."""
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
    """The setting may name all event types, some, or all except some; unknown ones are allowed."""
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
    """A wrong setting is refused before anything is archived."""
    with pytest.raises(Invalid, match=message):
        open_platform(**{setting: value}).archive.process()


def test_the_files_of_ready_hours_up_to_a_position(platform):
    """For jobs that read what the log does not have any more. Files with later records only are left out."""
    before = platform.archive.values_before("orders", {0: Position(1, 0)})
    events = [msgspec.json.decode(value) for file in before for value in file.values()]
    assert [event["metadata"]["occurred_at"] for event in events] == [to_rfc3339(NOON + 1), to_rfc3339(NOON + 2)]
    assert platform.archive.values_before("orders", {0: Position(1, -1)}) == []
    assert platform.archive.values_before("nothing", {}) == []
