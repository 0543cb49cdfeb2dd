"""What every node does for journals from time to time. Each task is idempotent, and several nodes may do it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from strandline.clock import Clock
from strandline.journal.action_log import ActionLog, NewAction
from strandline.journal.model import Purge
from strandline.journal.reading import JournalReader
from strandline.journal.settings import JournalSettings
from strandline.journal.storage.port import JournalStore
from strandline.log.cursors import Position
from strandline.log.raw import RawTopic
from strandline.log.upkeep import guarded
from strandline.room import GaugeMetric, GaugeValues

log = logging.getLogger(__name__)

_LAG = GaugeMetric(
    "strandline_journal_replication_lag", "Actions in the log that are not replicated to the store yet.", "topic"
)
_DEAD = GaugeMetric(
    "strandline_journal_dead_letters",
    "Records that could not be decoded and were set aside (at most 1000).",
    "topic",
)
_AT_ONCE = 500
_COUNTED = 1_000


class JournalUpkeep:
    def __init__(
        self,
        store: Callable[[], JournalStore],
        action_log: ActionLog,
        reader: JournalReader,
        settings: JournalSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._log = action_log
        self._reader = reader
        self._settings = settings
        self._clock = clock
        self._gauges: dict[GaugeMetric, dict[str, float]] = {_LAG: {}, _DEAD: {}}

    def gauges(self) -> GaugeValues:
        return {metric: dict(values) for metric, values in self._gauges.items()}

    def run(self) -> None:
        topics = self._log.raw.topics()
        for topic in topics:
            with guarded(f"purging expired journals of {topic.name}"):
                self.purge_expired(topic)
            with guarded(f"removing replicated actions of {topic.name}"):
                self.trim(topic)
        with guarded("forgetting journals of deleted topics"):
            self.forget()

    def measure(self) -> None:
        lags: dict[str, float] = {}
        dead: dict[str, float] = {}
        for topic in self._log.raw.topics():
            with guarded(f"measuring the replication of {topic.name}"):
                lags[topic.name] = self._log.raw.lag(topic.name, self._store().pointers(topic.id))
                dead[topic.name] = len(self._store().dead_letters(topic.id, _COUNTED, brief=True))
        self._gauges = {_LAG: lags, _DEAD: dead}

    # -- expiry

    def purge_expired(self, topic: RawTopic) -> None:
        """Purge all journals that have expired, through the log, except those with a newer action."""
        if topic.adopted:
            return
        now_ms, limit = self._clock.now_ms(), _AT_ONCE
        done: set[tuple[str, Position]] = set()
        while True:
            found = self._store().expired(topic.id, now_ms, limit)
            self._purge(topic, [due for due in found if due not in done])
            if len(found) < limit:
                return
            # The purges are not replicated yet, so the next query finds the same journals again, and others.
            done.update(found)
            limit *= 2

    def _purge(self, topic: RawTopic, due: list[tuple[str, Position]]) -> None:
        parts: dict[int, list[NewAction]] = {}
        for entity, cursor in due:
            place = self._reader.place(topic, entity)
            head = self._reader.head(place, self._log.raw.end(topic.name, place.partition))
            if head is not None and head.cursor == cursor:
                parts.setdefault(place.partition, []).append((entity, Purge(cursor), None))
        for partition, purges in parts.items():
            for start in range(0, len(purges), _AT_ONCE):
                self._log.write(topic, partition, purges[start : start + _AT_ONCE])

    # -- the log and the store

    def trim(self, topic: RawTopic) -> None:
        """Remove actions that are old enough, and replicated."""
        pointers = self._store().pointers(topic.id)
        if pointers and not topic.adopted:
            self._log.raw.trim(topic.name, pointers, self._clock.now_ms() - self._settings.log_retention_ms)

    def forget(self) -> None:
        """Delete what the store has of topics whose event type was deleted."""
        # The store is asked before the event types, so that a new topic is not taken for a deleted one.
        stored = self._store().topics()
        existing = {topic.id for topic in self._log.raw.topics()}
        self._log.forget(existing)
        for topic in stored:
            if topic not in existing:
                self._store().forget(topic)
                log.info("the journals of a deleted event type were removed", extra={"topic": topic})
