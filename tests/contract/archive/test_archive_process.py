"""Processes of the archive that share the work: leases, turns, errors, stops."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from archive_place import NOON

from services import until
from strandline.archive.ledger import Leases
from strandline.archive.model import HOUR_MS, Harvest
from strandline.archive.process import ArchiveProcess
from strandline.archive.settings import ArchiveSettings
from strandline.archive.tasks import InProcess, Stage
from strandline.clock import ManualClock, to_rfc3339
from strandline.coordination.settings import CoordinationSettings
from strandline.errors import Unavailable
from strandline.log import EventType
from strandline.platform import Platform
from strandline.progress import JobProgress, OnProgress
from strandline.settings import Settings

LEASE_MS = 1500
NAMES = ["a", "b", "c", "d"]


class Machine:
    """A data directory on which several platforms are opened, as processes do, all with one clock."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.clock = ManualClock(NOON)
        self._opened: list[Platform] = []

    def open(self, **archive: Any) -> Platform:
        settings = Settings(
            archive=replace(ArchiveSettings(look_back_hours=1, interval_ms=10), **archive),
            coordination=CoordinationSettings(session_timeout_ms=LEASE_MS),
        )
        self._opened.append(Platform(self.data, settings, self.clock))
        return self._opened[-1]

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def flagged(self, name: str, hour: str = "2024-05-01/12") -> bool:
        return (self.data / "archive" / hour / name / "_READY").exists()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def platform(machine: Machine) -> Platform:
    """A platform with some event types."""
    platform = machine.open()
    for name in NAMES:
        platform.log.create(EventType(name, category="business"))
    return platform


def publish(platform: Platform, name: str = "a") -> None:
    now = to_rfc3339(platform.clock.now_ms())
    event = {"metadata": {"eid": "00000000-0000-0000-0000-000000000000", "occurred_at": now}}
    platform.log.publish(name, [event]).raise_for_failed()


@contextmanager
def running(process: ArchiveProcess, on_progress: OnProgress = lambda _: None) -> Iterator[threading.Event]:
    stop = threading.Event()
    thread = threading.Thread(target=process.run, args=(stop, on_progress))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def another(leases: Leases, name: str) -> Iterator[None]:
    """A running process that has the lease until the block ends."""
    leases.renew("another")
    assert leases.take("another", name)
    done = threading.Event()
    beats = threading.Thread(target=lambda: [leases.renew("another") for _ in iter(lambda: done.wait(0.1), True)])
    beats.start()
    try:
        yield
    finally:
        done.set()
        beats.join()
        leases.leave("another")


def archived(platform: Platform) -> int:
    return len([*(platform.data / "archive").glob("2*/*/*/data/*.parquet")])


def test_a_process_archives_all_event_types_until_it_is_told_to_stop(machine, platform):
    """Hours and periods are flagged as time passes, and a stop archives what was published before it."""
    told: list[JobProgress] = []
    with running(platform.archive.process(), told.append):
        publish(platform)
        until(lambda: {one.event_type for one in told} == {*NAMES}, "a turn of every event type")
        machine.clock.advance(HOUR_MS)
        until(lambda: told[-1].details["shift"] == 2, "the next shift")
        machine.clock.advance(30_000)
        until(lambda: all(machine.flagged(name) for name in NAMES), "flags")
        publish(platform)
    assert archived(platform) == 2
    assert platform.archive.ledger.leases.owners() == {}


def test_an_event_type_that_is_made_later_is_archived_too(machine, platform):
    """A new event type is found without a restart; hours before its creation are not due."""
    with running(platform.archive.process()):
        platform.log.create(EventType("late.comer", category="business"))
        machine.clock.advance(HOUR_MS + 30_000)
        until(lambda: machine.flagged("late.comer"), "its flag")
    assert not machine.flagged("late.comer", "2024-05-01/11")


def test_processes_share_the_event_types(machine, platform):
    """Two processes share the event types evenly; after one leaves, the other has all."""
    mine: dict[str, set[str]] = {"first": set(), "second": set()}

    def shares() -> list[int]:
        counts = [len(mine["first"]), len(mine["second"])]
        for names in mine.values():
            names.clear()
        return counts

    first, second = platform.archive.process(), machine.open().archive.process()
    with running(first, lambda one: mine["first"].add(one.event_type)):
        until(lambda: len(mine["first"]) == 4, "all event types")
        with running(second, lambda one: mine["second"].add(one.event_type)):
            until(lambda: len(mine["second"]) == 2, "half of the event types")
            shares()
            until(lambda: [len(names) for names in mine.values()] == [2, 2], "fair shares")
            assert not mine["first"] & mine["second"]
        shares()
        until(lambda: len(mine["first"]) == 4, "all event types again")
    publish(platform)


def test_an_error_of_one_event_type_is_none_of_the_others(machine, platform, caplog, monkeypatch):
    """The failed event type is retried without loss or duplicates; the others are not affected."""

    class Failing(InProcess):
        errors: Sequence[Exception] = [Unavailable("not now", retry_after=0), RuntimeError("a bug")]

        def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
            if tasks and self.errors:
                error, *self.errors = self.errors
                raise error
            return super().stage(tasks)

    monkeypatch.setattr("strandline.archive.process._RETRY_SECONDS", 0)
    with running(platform.archive.process(Failing())):
        publish(platform)
        machine.clock.advance(HOUR_MS + 30_000)
        until(lambda: all(machine.flagged(name) for name in NAMES), "flags")
    assert archived(platform) == 1
    assert "archiving a failed; retrying: not now" in caplog.text
    assert "archiving a failed; starting again" in caplog.text
    assert "a bug" in caplog.text


def test_what_was_collected_is_kept_while_something_is_away(machine, platform):
    """Collected records are not read again after Unavailable, and the claim stays the same."""
    read: list[int] = []

    class Away(InProcess):
        away = False

        def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
            if tasks and self.away:
                raise Unavailable("away", retry_after=0)
            read.extend(task.part.size for task in tasks)
            return super().stage(tasks)

    runner, told = Away(), []
    platform = machine.open(min_records=1)
    process = platform.archive.process(runner)
    with running(process, told.append):
        until(lambda: len(told) > 8, "turns")
        publish(platform)
        until(lambda: read == [1], "the first record")
        runner.away = True
        publish(platform)
        until(lambda: process._first_error is not None, "an error")
        runner.away = False
        until(lambda: read == [1, 1], "the second record")
        assert platform.archive.ledger.standing("a").epoch == 1
    assert archived(platform) == 2


def test_a_process_waits_for_its_ledger(machine, platform, monkeypatch):
    """The process continues when the ledger answers again."""
    process, ledger = platform.archive.process(), platform.archive.ledger
    terms, calls = ledger.terms, []

    def lost() -> object:
        calls.append(1)
        if len(calls) < 4:
            raise Unavailable("no ledger", retry_after=0)
        return terms()

    monkeypatch.setattr(ledger, "terms", lost)
    with running(process):
        machine.clock.advance(HOUR_MS + 30_000)
        until(lambda: machine.flagged("a"), "a flag")
    assert len(calls) > 3


def test_once_raises_what_went_wrong_after_the_others_are_done(machine, platform):
    """`once` archives the other event types first; the error decides the exit code of the command."""

    class Failing(InProcess):
        def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
            if any(task.part.event_type == "b" for task in tasks):
                raise Unavailable("not b")
            return super().stage(tasks)

    publish(platform, "a")
    publish(platform, "b")
    publish(platform, "c")
    with pytest.raises(Unavailable, match="not b"):
        platform.archive.process(Failing()).once()
    assert archived(platform) == 2


def test_once_waits_for_leases_of_the_dead_and_leaves_those_of_the_living(machine, platform, caplog):
    """`once` waits for the lease of a killed process to expire and skips a lease that is renewed."""
    leases = machine.open().archive.ledger.leases
    leases.renew("dead")
    assert leases.take("dead", "a")
    publish(platform)
    platform.archive.process().once()
    assert archived(platform) == 1
    publish(platform)
    with another(leases, "a"):
        platform.archive.process().once()
    assert archived(platform) == 1
    assert "another process archives a; skipping" in caplog.text


def test_whoever_lost_an_event_type_lets_it_go(machine, platform, caplog):
    """An archiver whose claim was replaced ends; a process that still has the lease claims again."""
    caplog.set_level("INFO", logger="strandline")
    process, ledger = platform.archive.process(), platform.archive.ledger
    with running(process):
        until(lambda: {*process._archivers} == {*NAMES}, "all event types")
        archiver = process._archivers["a"]
        ledger.claim("a", platform.log.types.entry("a").id)
        machine.clock.advance(HOUR_MS + 30_000)
        until(lambda: machine.flagged("a"), "the flag")
        assert process._archivers["a"] is not archiver
    assert "another process archives 'a' now" in caplog.text


def test_a_process_that_slept_shows_up_again(machine, platform):
    """A process that lost its leases registers again and takes the free ones."""
    process, leases = platform.archive.process(), platform.archive.ledger.leases
    with running(process):
        until(lambda: {*process._archivers} == {*NAMES}, "all event types")
        leases.leave(process.owner)
        until(lambda: process.owner in leases.owners(), "the owner's return")
        machine.clock.advance(HOUR_MS + 30_000)
        until(lambda: all(machine.flagged(name) for name in NAMES), "flags")


def test_a_process_that_gets_nothing_done_loses_its_event_types(machine, platform):
    """If every step fails, the leases expire although the process lives, and another process archives."""

    class Broken(InProcess):
        def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
            raise Unavailable(f"no Spark for {len(tasks)} tasks", retry_after=0)

    publish(platform)
    broken = machine.open(event_types="a", min_records=1).archive.process(Broken())
    broken._keeper._stall_ms = 100
    with running(broken):
        until(lambda: broken._first_error, "a step that failed")
        healthy = machine.open(event_types="a", min_records=1).archive.process()
        with running(healthy):
            machine.clock.advance(HOUR_MS + 30_000)
            until(lambda: machine.flagged("a"), "the flag")
            assert [*platform.archive.ledger.leases.owners()] == [healthy.owner]


def test_one_propagates_at_a_time(machine, platform):
    """Propagation is skipped while another process has its lease."""
    platform.archive.process().once()
    machine.clock.advance(HOUR_MS + 60_000)
    process = machine.open().archive.process()
    with another(platform.archive.ledger.leases, "propagation of flags"):
        process.once()
    assert machine.flagged("a")
    assert [*platform.archive.periods("2024-05-01T12", "2024-05-01T13")] == []
    process.once()
    assert [one.path for one in platform.archive.periods("2024-05-01T12", "2024-05-01T13")] == ["2024-05-01/12"]


def test_an_event_type_may_have_any_name(machine, platform):
    """The lease of an event type called `propagation` is not that of the propagation."""
    platform.log.create(EventType("propagation", category="business"))
    with another(platform.archive.ledger.leases, "propagation"):
        process = platform.archive.process()
        process._keeper.register()
        process._propagate(platform.archive.ledger.terms())
        assert process._propagated > 0


def test_a_log_that_was_restored_from_an_old_copy_is_archived_on(machine, platform, caplog):
    """A stored position past the end of the log is reported once, and new records are archived."""
    publish(platform)
    machine.close()
    copy = shutil.copytree(machine.data / "topics", machine.data.parent / "copy")
    platform = machine.open()
    publish(platform)
    publish(platform)
    platform.archive.process().once()
    machine.close()
    shutil.rmtree(machine.data / "topics")
    shutil.copytree(copy, machine.data / "topics")

    platform = machine.open()
    platform.archive.process().once()
    platform.archive.process().once()
    (report,) = [line for line in caplog.messages if "'a', partition 0" in line]
    assert "001-0001-000000000000000002 is not available" in report
    publish(platform)
    platform.archive.process().once()
    assert [part.position.offset for part in platform.archive.ledger.standing("a").partitions.values()] == [1]
    assert archived(platform) == 2
