"""The journal room in this process, over the log and the store."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from operator import attrgetter
from typing import Any

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.errors import Conflict, NotFound, OutcomeUnknown, Unavailable
from strandline.journal import payloads, rules, wire
from strandline.journal.action_log import ActionLog
from strandline.journal.entity_locks import EntityLocks
from strandline.journal.marks import Marks
from strandline.journal.model import (
    MAX_SEQ_NR,
    Append,
    Appended,
    DeadLetter,
    Head,
    JournalEvent,
    JournalTopic,
    NewEvent,
    Payload,
    Pointer,
    Snapshot,
    StoredEvent,
)
from strandline.journal.reading import JournalReader, Place
from strandline.journal.replicators import Replicators
from strandline.journal.room import Journal
from strandline.journal.serving import ServedJournals
from strandline.journal.settings import JournalSections
from strandline.journal.storage.connect import connect
from strandline.journal.storage.port import JournalStore
from strandline.journal.upkeep import JournalUpkeep
from strandline.journal.writer import JournalWriter
from strandline.log.cursors import Position
from strandline.log.local import LocalLog
from strandline.log.raw import RawTopic
from strandline.room import Chore, CounterMetric, CounterValues, GaugeValues, Room

_event_of: Callable[[StoredEvent], JournalEvent] = attrgetter("event")
_UPKEEP_INTERVAL_MS = 60_000
_MEASURE_INTERVAL_MS = 5_000
# An id that no event type has.
_NO_TOPIC = str(uuid.UUID(int=0))
_VOID = CounterMetric("strandline_journal_void_appends", "Appends of this node that were void.", "topic")


class LocalJournals(ServedJournals, Room):
    def __init__(self, log: LocalLog, databases: Databases, settings: JournalSections, clock: Clock) -> None:
        self._raw = log.raw
        self._databases = databases
        self._settings = settings.journal
        self._lock = threading.Lock()
        self._opened: JournalStore | None = None
        self.action_log = ActionLog(log.raw, settings.journal, settings.log, clock)
        self._marks = Marks(self.action_log)
        self.reader = JournalReader(self.store, self.action_log, self._marks)
        locks = EntityLocks(databases, settings.catalog.url, settings.log.publish_timeout_ms)
        self.writer = JournalWriter(self.store, self.action_log, self.reader, locks)
        self.replicators = Replicators(log, databases, settings, self.store)
        self.upkeep = JournalUpkeep(self.store, self.action_log, self.reader, settings.journal, clock)

    def store(self) -> JournalStore:
        """Opened when it is first needed: many processes only use other rooms."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = connect(self._settings.url, self._databases)
        return self._opened

    # -- the contract

    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        storage: str | None = None,
        kafka_topic: str | None = None,
    ) -> JournalTopic:
        return self.put(topic, partitions=partitions, storage=storage, kafka_topic=kafka_topic)[0]

    def put(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        storage: str | None = None,
        kafka_topic: str | None = None,
    ) -> tuple[JournalTopic, bool]:
        found, created = self._raw.create(topic, partitions, storage, kafka_topic)
        return _described(found), created

    def topics(self) -> list[JournalTopic]:
        return [_described(topic) for topic in self._raw.topics()]

    def of(self, topic: str) -> LocalJournal:
        return LocalJournal(topic, self)

    def topic(self, name: str) -> RawTopic:
        return self._raw.topic(name)

    def known(self, name: str) -> RawTopic:
        """The topic for a write, which is refused if the topic was replaced since."""
        return self._raw.known(name)

    def dead_letters(self, topic: str, *, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        return self.store().dead_letters(
            self.topic(topic).id, limit, None if after is None else wire.parse_place(after)
        )

    # -- for the process that runs the room

    def check_ready(self) -> None:
        if self._is_used():
            self.store().pointers(_NO_TOPIC)

    def chores(self) -> list[Chore]:
        return [
            Chore("upkeep of the journals", _UPKEEP_INTERVAL_MS, self._keep_up),
            Chore("measuring the replication of journals", _MEASURE_INTERVAL_MS, self._measure),
        ]

    def _keep_up(self) -> None:
        if self._is_used():
            self.upkeep.run()

    def _measure(self) -> None:
        if self._is_used():
            self.upkeep.measure()

    def _is_used(self) -> bool:
        """Whether there is a reason to open the store."""
        return self._opened is not None or bool(self._raw.topics())

    def counts(self) -> CounterValues:
        return {_VOID: dict(self.writer.void)}

    def gauges(self) -> GaugeValues:
        return self.upkeep.gauges()

    def close(self) -> None:
        self._marks.close()
        self.action_log.close()
        with self._lock:
            if self._opened is not None:
                self._opened.close()


class LocalJournal(Journal):
    def __init__(self, name: str, journals: LocalJournals) -> None:
        self.name = name
        self._journals = journals

    def _place(self, entity: str) -> Place:
        return self._journals.reader.place(self._journals.topic(self.name), entity)

    # -- changes

    def append(
        self,
        entity: str,
        events: Sequence[NewEvent | Any],
        *,
        expected: int | None = None,
        since: str | None = None,
        expire_after_ms: int | None = None,
        metadata: Any = None,
        append_id: str | None = None,
    ) -> Appended:
        topic = self._journals.known(self.name)
        complete = rules.numbered(events, expected)
        rules.check_expiry(expire_after_ms)
        data = None if metadata is None else rules.json_of(metadata, "the metadata")
        if append_id is not None:
            rules.check_append_id(append_id)
        own_id = append_id or os.urandom(16).hex()
        encoding, value = payloads.encode(complete, data, expire_after_ms)
        numbers = (complete[0].seq_nr or 0, complete[-1].seq_nr or 0)
        append = Append(*numbers, encoding, own_id, expected, rules.life(since), expire_after_ms)

        def write(topic: RawTopic) -> Appended:
            place = self._journals.reader.place(topic, entity)
            return self._journals.writer.append(place, append, own_id, value, retried=append_id is not None)

        try:
            return write(topic)
        except NotFound:  # nothing is stored, but the topic may have been deleted and created again
            return write(self._journals.topic(self.name))

    def delete(self, entity: str, to: int, *, since: str | None = None) -> None:
        self._journals.writer.delete(self._place(entity), rules.seq_nr(to), rules.life(since))

    def purge(self, entity: str) -> None:
        self._journals.writer.purge(self._place(entity))

    # -- reads

    def read(
        self, entity: str, first: int = 1, last: int | None = None, *, limit: int | None = None
    ) -> Iterator[JournalEvent]:
        place = self._place(entity)
        rules.check_range(first, last, limit)
        highest = MAX_SEQ_NR if last is None else last
        if highest < first or limit == 0:
            return iter(())
        return _events(self._journals.reader.rows(place, max(first, 1), highest), limit)

    def pointer(self, entity: str) -> Pointer:
        return Pointer.of(self._head(entity)[1])

    def _head(self, entity: str) -> tuple[Place, Head | None]:
        place = self._place(entity)
        return place, self._journals.reader.head(place)

    # -- snapshots, which belong to one life of a journal

    def save_snapshot(self, entity: str, seq_nr: int, payload: Payload | Any, *, since: str | None = None) -> None:
        rules.seq_nr(seq_nr)
        given = rules.payload(payload)
        place, head = self._head(entity)
        life = self._life(entity, head, rules.life(since))
        store = self._journals.store()
        store.save_snapshot(place.topic.id, entity, life, Snapshot(seq_nr, given))
        try:
            _, now = self._head(entity)
            if now is None or now.since != life:
                # The purge may have been replicated before the snapshot was stored; nothing else would delete it.
                store.delete_snapshot(place.topic.id, entity, life, seq_nr)
        except Unavailable as error:
            raise OutcomeUnknown(f"the snapshot was saved, but not checked for a purge: {error}") from error
        self._life(entity, now, life)

    def _life(self, entity: str, head: Head | None, since: Position | None) -> Position:
        if head is None:
            raise NotFound(f"there is no journal {entity!r:.80} in {self.name}; append to it first")
        if since not in {None, head.since}:
            raise Conflict(f"the journal {entity!r:.80} was purged and created again", seq_nr=head.seq_nr)
        return head.since

    def snapshot(self, entity: str, at_most: int | None = None) -> Snapshot | None:
        most = MAX_SEQ_NR if at_most is None else at_most
        rules.check_number("at_most", most)
        place, head = self._head(entity)
        if head is None:
            return None
        return self._journals.store().snapshot(place.topic.id, entity, head.since, most)

    def delete_snapshot(self, entity: str, seq_nr: int) -> None:
        rules.seq_nr(seq_nr)
        place, head = self._head(entity)
        if head is not None:
            self._journals.store().delete_snapshot(place.topic.id, entity, head.since, seq_nr)


def _events(rows: Generator[StoredEvent], limit: int | None) -> Iterator[JournalEvent]:
    with closing(rows):  # a reader that stops early ends the snapshot at once
        yield from map(_event_of, rows if limit is None else islice(rows, limit))


def _described(topic: RawTopic) -> JournalTopic:
    return JournalTopic(topic.name, topic.partitions, topic.storage_id, topic.kafka_topic)
