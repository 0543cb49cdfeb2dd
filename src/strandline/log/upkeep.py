"""Periodic cleanup in every node: expired timelines and records, and topics that a crash left behind.

Several nodes may run it at the same time, and each may crash at any statement: the catalog stores the pending
work, and every task is idempotent.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from strandline import failpoints
from strandline.clock import Clock, to_rfc3339
from strandline.errors import Damaged, StrandlineError, Unavailable
from strandline.log import expiry
from strandline.log.catalog import Catalog
from strandline.log.cursors import Position
from strandline.log.model import CatalogEntry, Timeline
from strandline.log.open_storages import Storages
from strandline.log.retention import Wait, WaitingRetention
from strandline.log.settings import LogSettings
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.log.subscriptions.stats import unread
from strandline.logging_setup import fields
from strandline.room import CounterMetric, CounterValues

log = logging.getLogger(__name__)

_REMOVED = CounterMetric("strandline_removed_timelines", "Timelines removed.", "event_type")
_UNREAD = CounterMetric(
    "strandline_removed_unread_events",
    "Events of removed timelines that a subscription had not read, counted for each subscription.",
    "event_type",
)

_DAMAGED = CounterMetric("strandline_damaged_batches", "Stored batches that were found damaged.", "topic")


@dataclass(frozen=True)
class Removed:
    """A removed timeline, and the number of its events that were not read, summed over all subscriptions."""

    timeline: Timeline
    unread: int


class Upkeep:
    def __init__(
        self,
        catalog: Catalog,
        storages: Storages,
        subscriptions: SubscriptionStore,
        settings: LogSettings,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._storages = storages
        self._subscriptions = subscriptions
        self._settings = settings
        self._clock = clock
        #: The event types whose expired records are kept until they are archived.
        self.retention = WaitingRetention(storages)
        self._counts: dict[CounterMetric, Counter[str]] = {_REMOVED: Counter(), _UNREAD: Counter()}

    def counts(self) -> CounterValues:
        counted = {metric: dict(values) for metric, values in self._counts.items()}
        return {**counted, _DAMAGED: self._storages.damaged_batches()}

    def run(self) -> list[Removed]:
        """One round of all tasks; returns the timelines it removed. The next round retries what failed."""
        removed: list[Removed] = []
        with guarded("asking what is archived"):  # before that, nothing may expire
            waits = self.retention.waits()
            self.retention.forget(waits)
            removed = self.remove_timelines(waits)
            self.purge(waits)
        self.sweep()
        self._storages.tidy()
        return removed

    def remove_timelines(self, waits: Mapping[str, Wait] | None = None) -> list[Removed]:
        """Mark closed timelines past their retention as removed; a later sweep deletes their topics.

        No reader starts on a marked timeline. Readers that have started on it can finish until the sweep.
        """
        waits = self.retention.waits() if waits is None else waits
        now_ms = self._clock.now_ms()
        found: list[Removed] = []
        for entry in self._catalog.entries():
            retention_ms = entry.event_type.retention_ms(self._settings.retention_ms)
            if retention_ms is None:
                continue
            with guarded(f"removing timelines of {entry.event_type.name}"):
                wait = waits.get(entry.event_type.name)
                for timeline in self._expired(entry, wait, retention_ms, now_ms):
                    behind = unread(self._subscriptions, entry.id, timeline)
                    found += self._removed(timeline, behind, now_ms)
        return found

    def _expired(self, entry: CatalogEntry, wait: Wait | None, retention_ms: int, now_ms: int) -> list[Timeline]:
        """The closed timelines that may be removed now."""
        found = expiry.removable(entry.timelines, retention_ms, now_ms)
        if wait is None:
            return found
        positions = wait.positions
        done = [*itertools.takewhile(lambda timeline: expiry.is_replicated(timeline, positions), found)]
        # Most timelines are archived; their storages need not answer.
        waiting = len(done) < len(found) and self.retention.of(entry, wait, now_ms - retention_ms)
        return done if waiting else found

    def _removed(self, timeline: Timeline, behind: Mapping[str, int], now_ms: int) -> list[Removed]:
        """Mark a timeline as removed; an empty list if another node did so first."""
        # Logged before the mark: a crash between the two repeats the warning instead of losing it.
        for subscription, count in behind.items():
            log.warning(
                "%d events of %s, timeline %d, are removed before the subscription read them",
                count, timeline.event_type, timeline.order, extra=fields(subscription=subscription),
            )  # fmt: skip
        marked = msgspec.structs.replace(timeline, cleaned_up_at=to_rfc3339(now_ms))
        failpoints.hit("upkeep.mark")
        if not self._catalog.remove_timeline(marked, self._settings.cleanup_delay_ms):
            return []
        about = fields(event_type=timeline.event_type, order=timeline.order, topic=timeline.topic)
        log.info("a timeline was removed", extra=about)
        removed = Removed(marked, sum(behind.values()))
        self._counts[_REMOVED][timeline.event_type] += 1
        self._counts[_UNREAD][timeline.event_type] += removed.unread
        return [removed]

    def trim(self, entry: CatalogEntry, replicated: Mapping[int, Position], before_ms: int) -> int:
        """Remove records that are older than a time and replicated, up to the position of each partition.

        A timeline is removed as a whole when all its records may be. Returns the number of the other records.
        """
        old = expiry.removable(entry.timelines, 0, before_ms)
        gone = [*itertools.takewhile(lambda timeline: expiry.is_replicated(timeline, replicated), old)]
        for timeline in gone:
            self._removed(timeline, {}, self._clock.now_ms())
        removed = 0
        for timeline in entry.timelines:
            ends = expiry.replicated_ends(timeline, replicated)
            if ends and timeline not in gone and timeline.cleaned_up_at is None:
                removed += self._storages.get(timeline.storage_id).purge(timeline.topic, before_ms, ends)
        return removed

    def sweep(self, among: Collection[tuple[str, str]] | None = None) -> None:
        """Delete topics that no event type owns: all of them, or those given as (storage id, topic)."""
        unreachable: set[str] = set()
        for storage_id, topic in self._catalog.topics_to_delete():
            if storage_id in unreachable or (among is not None and (storage_id, topic) not in among):
                continue
            with guarded(f"deleting topic {topic}", unreachable, storage_id):
                if not self._catalog.claim_topic(storage_id, topic):
                    continue
                failpoints.hit("upkeep.delete")
                self._storages.get(storage_id).delete_topic(topic)
                failpoints.hit("upkeep.forget")
                self._catalog.forget_topic(storage_id, topic)

    def check_storages(self) -> dict[str, StrandlineError | None]:
        """Ask every storage of the catalog whether it can be used; the error of each that cannot."""
        found: dict[str, StrandlineError | None] = {}
        for info in self._catalog.storages.list():
            found[info.id] = None
            try:
                self._storages.check_ready(info.id)
            except StrandlineError as error:
                found[info.id] = error
        return found

    def find_damage(self, storages: Collection[str]) -> Iterator[StrandlineError]:
        """Read all records in these storages. Returns an error for every damaged range and unreadable topic."""
        for entry in self._catalog.entries():
            for timeline in entry.timelines:
                if timeline.cleaned_up_at is None and timeline.storage_id in storages:
                    try:
                        storage = self._storages.get(timeline.storage_id)
                        storage.bounds(timeline.topic)  # an error if the topic is missing
                        yield from storage.find_damage(timeline.topic)
                    except StrandlineError as error:
                        yield _about(error, entry.event_type.name)

    def purge(self, waits: Mapping[str, Wait] | None = None) -> int:
        """Remove records past the current retention of their event type; returns how many."""
        waits = self.retention.waits() if waits is None else waits
        removed = 0
        unreachable: set[str] = set()
        for entry in self._catalog.entries():
            retention_ms = entry.event_type.retention_ms(self._settings.retention_ms)
            if retention_ms is None:
                continue
            before_ms = self._clock.now_ms() - retention_ms
            with guarded(f"purging {entry.event_type.name}"):
                wait = self.retention.of(entry, waits.get(entry.event_type.name), before_ms)
                for timeline in entry.timelines:
                    if timeline.cleaned_up_at is None and timeline.storage_id not in unreachable:
                        with guarded(f"purging topic {timeline.topic}", unreachable, timeline.storage_id):
                            removed += self._purge(timeline, wait, retention_ms, before_ms)
        if removed:
            log.info("expired records were removed", extra=fields(records=removed))
        return removed

    def _purge(self, timeline: Timeline, wait: Wait | None, retention_ms: int, before_ms: int) -> int:
        """Remove expired records of a timeline; with a wait, only those that are archived."""
        storage = self._storages.get(timeline.storage_id)
        # An engine that expires records by itself does not know what is archived.
        storage.retain(timeline.topic, retention_ms if wait is None else None)
        ends = None if wait is None else expiry.replicated_ends(timeline, wait.positions)
        return storage.purge(timeline.topic, before_ms, ends)


def _about(error: StrandlineError, event_type: str) -> StrandlineError:
    """An error of a storage that names the event type, unless it is about damaged records and names more."""
    if isinstance(error, Damaged):
        return error
    return Unavailable(f"the events of {event_type} cannot be read: {error.detail}; restore them from a backup")


@contextmanager
def guarded(what: str, unreachable: set[str] | None = None, storage_id: str = "") -> Iterator[None]:
    """Log a failure and continue. An unavailable storage is added to `unreachable`, so that it is skipped."""
    try:
        yield
    except StrandlineError as error:
        log.warning("%s failed; the next round retries it: %s", what, error.detail)
        if isinstance(error, Unavailable) and unreachable is not None:
            unreachable.add(storage_id)
    except Exception:
        log.exception("%s failed; the next round retries it", what)
