"""Shifts and flags against a simple model, with publishes, stops, crashes and new partitions at any time."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from archive_place import GRACE, NOON, ArchivePlace
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.archive.model import HOUR_MS, hour_of

MINUTE = 60_000


@dataclass(frozen=True)
class Event:
    """An event in the model."""

    eid: str
    hour_ms: int
    published_ms: int


class ArchiveMachine(RuleBasedStateMachine):
    """The model: every event with its hour and the time of its publication, and every flag ever seen."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.place = ArchivePlace(self.folder, max_records=7, min_records=5, look_back_hours=1)
        self.place.create(partitions=2)
        self.partitions = 2
        self.archiver = self.place.archiver()
        self.events: list[Event] = []
        self.revisions: dict[int, int] = {}

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.place.close()
            shutil.rmtree(self.folder)

    @property
    def now_ms(self) -> int:
        return self.place.clock.now_ms()

    @initialize(minutes=st.integers(0, 59))
    def start_somewhere_in_the_hour(self, minutes: int) -> None:
        self.place.clock.advance(minutes * MINUTE)

    @rule(
        partition=st.integers(0, 3),
        ages=st.lists(st.sampled_from([0, 1, 59, 61, 130, -20]).map(lambda m: m * MINUTE), min_size=1, max_size=6),
    )
    def publish(self, partition: int, ages: list[int]) -> None:
        """Publish events of the present, of earlier hours, and slightly in the future."""
        times = [self.now_ms - age for age in ages]
        ids = self.place.publish(*times, partition=partition % self.partitions)
        self.events += [Event(eid, hour_of(ms), self.now_ms) for eid, ms in zip(ids, times, strict=True)]

    @rule(ms=st.sampled_from([1_000, 29_999, 30_000, 10 * MINUTE, 45 * MINUTE, 3 * HOUR_MS]))
    def pass_time(self, ms: int) -> None:
        self.place.clock.advance(ms)

    @rule(everything=st.booleans())
    def step(self, everything: bool) -> None:
        self.archiver.step(self.place.terms, everything=everything)

    @rule()
    def stop_and_start(self) -> None:
        self.archiver.stop(self.place.terms)
        self.archiver = self.place.archiver()

    @rule()
    def crash_and_start(self) -> None:
        """A crash leaves staged files, which the next start deletes."""
        self.archiver = self.place.archiver()
        assert self.place.staged() == []

    @rule()
    def abort_and_start(self) -> None:
        before = self.place.stored()
        self.archiver.abort()
        assert (self.place.staged(), self.place.stored()) == ([], before)
        self.archiver = self.place.archiver()

    @precondition(lambda self: self.partitions < 4)
    @rule()
    def grow(self) -> None:
        self.partitions += 1
        self.place.platform.log.admin.grow("orders", self.partitions)

    @invariant()
    def no_event_is_published_twice_and_every_record_is_counted(self) -> None:
        found = self.place.ids()
        assert set(found.values()) <= {1}
        counts = self.place.counts()
        assert counts.balanced
        assert counts.read == sum(found.values())

    @invariant()
    def flags_are_those_of_ended_hours_in_order(self) -> None:
        flagged = self.flags()
        assert all(hour_ms + HOUR_MS <= self.now_ms for hour_ms in flagged)
        (first,) = (term.from_ms for term in self.place.terms if term.to_ms is None)
        own = [hour_ms for hour_ms in flagged if hour_ms >= first]
        assert own == [*range(first, max(own, default=0) + 1, HOUR_MS)]
        # Hours before the look-back are flagged if they have data.
        assert all(self.place.ids_in(hour_ms) for hour_ms in flagged if hour_ms < first)

    @invariant()
    def revisions_never_go_back(self) -> None:
        for hour_ms, revision in self.flags().items():
            assert revision >= self.revisions.get(hour_ms, 1)
            self.revisions[hour_ms] = revision

    @invariant()
    def a_flagged_hour_has_everything_of_its_time(self) -> None:
        """It has every event published before the end of its grace, none of other hours, and none twice."""
        for hour_ms in self.flags():
            listed = self.place.ids_in(hour_ms)
            own = {event.eid: event for event in self.events if event.hour_ms == hour_ms}
            in_time = {eid for eid, event in own.items() if event.published_ms < hour_ms + HOUR_MS + GRACE}
            assert in_time <= {*listed} <= {*own}
            assert listed == Counter([*listed])

    def flags(self) -> dict[int, int]:
        """The revision of every flagged hour."""
        hours = range(NOON - 4 * HOUR_MS, self.now_ms, HOUR_MS)
        found = {hour_ms: self.place.flag(hour_ms) for hour_ms in hours}
        return {hour_ms: flag["revision"] for hour_ms, flag in found.items() if flag is not None}

    def settle(self) -> None:
        """After two hours without changes the archive has every event, and every ended hour is flagged."""
        end_ms = hour_of(self.now_ms) + 2 * HOUR_MS + GRACE
        self.place.live_through(self.archiver, end_ms, every_ms=5 * MINUTE)
        while not self.archiver.step(self.place.terms).caught_up:
            pass
        assert self.place.ids() == Counter(event.eid for event in self.events)
        assert max(self.flags(), default=0) == hour_of(self.now_ms) - HOUR_MS
        self.a_flagged_hour_has_everything_of_its_time()
        for hour_ms in self.flags():
            own = {event.eid for event in self.events if event.hour_ms == hour_ms}
            assert {*self.place.ids_in(hour_ms)} == own


TestArchiveMachine = ArchiveMachine.TestCase
TestArchiveMachine.settings = settings(max_examples=12, stateful_step_count=20)
