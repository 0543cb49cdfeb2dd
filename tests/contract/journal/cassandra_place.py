"""Journals in Cassandra whose writes a test records, repeats in any order, or stops in the middle."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from services.cassandra import CassandraServer
from strandline.engine.cassandra import CassandraSession, Write
from strandline.journal import payloads
from strandline.journal.fold import Verdict, fold
from strandline.journal.model import (
    MAX_SEQ_NR,
    Action,
    Append,
    Delete,
    Head,
    LoggedAction,
    Mark,
    NewEvent,
    Payload,
    Purge,
)
from strandline.journal.storage.cassandra import CassandraJournalStore
from strandline.journal.storage.cassandra_tables import Sizes
from strandline.log.cursors import Position

#: Small, so that short journals have several segments, and several heads are in one.
SIZES = Sizes(segments=4, segment_size=3)
CONTRACT_SIZES = Sizes(segments=8, segment_size=500)


class KilledError(Exception):
    """Stands for the end of the replicator's process."""


class ControlledSession(CassandraSession):
    """Records all writes. With `left` it carries out so many, chosen at random from a wave, and then fails."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.written: list[Write] = []
        self.left: int | None = None
        self.random = random.Random(0)

    def write(self, writes: Sequence[Write]) -> None:
        self.written += writes
        if self.left is None:
            super().write(writes)
            return
        chosen = self.random.sample(list(writes), min(len(writes), self.left))
        self.left -= len(chosen)
        super().write(chosen)
        if len(chosen) < len(writes):
            raise KilledError


class Place:
    """A keyspace. Tests have topics of their own."""

    def __init__(self, server: CassandraServer, sizes: Sizes = SIZES) -> None:
        self.server = server
        self.keyspace = server.new_keyspace()
        self.session = ControlledSession(server.url(self.keyspace))
        self.store = CassandraJournalStore(self.session, sizes)

    def close(self) -> None:
        self.store.close()

    def raw(self, columns: str, table: str, topic: str) -> list[tuple]:
        """Sorted; a segment without rows has nulls, which come first."""
        found = raw(self.session, columns, table, topic)
        return sorted(found, key=lambda row: [(value is not None, value) for value in row])


def raw(session: CassandraSession, columns: str, table: str, topic: str) -> list[tuple]:
    """All rows of a topic, without the store."""
    statement = f"SELECT {columns} FROM {table} WHERE topic = ? ALLOW FILTERING"  # noqa: S608 - not from outside
    return list(session.fetch(statement, uuid.UUID(topic)))


class TopicsOfOneTest:
    """A `JournalStore` for a test in a keyspace that tests share: every name of a topic becomes an id of its own.

    A topic that is forgotten and used again has another id, as an event type that is created again.
    """

    def __init__(self, session: CassandraSession, scope: str) -> None:
        self._session = session
        self._store = CassandraJournalStore(session, CONTRACT_SIZES)
        self._scope = uuid.UUID(scope)
        self._ids: dict[str, str] = {}
        self._forgotten: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda topic, *rest, **more: method(self._id(topic), *rest, **more)

    def _id(self, topic: str) -> str:
        return self._ids.setdefault(topic, str(uuid.uuid5(self._scope, topic)))

    def apply(self, topic: str, *rest: Any, **more: Any) -> int:
        if topic in self._forgotten:
            self._forgotten.remove(topic)
            self._ids[topic] = str(uuid.uuid4())
        return self._store.apply(self._id(topic), *rest, **more)

    def forget(self, topic: str) -> None:
        self._store.forget(self._id(topic))
        self._forgotten.add(topic)

    def topics(self) -> list[str]:
        stored = set(self._store.topics())
        return [name for name, topic in self._ids.items() if topic in stored]

    def stored_seq_nrs(self) -> list[int]:
        """Of all topics of the test; a segment without rows has a link only."""
        found = [row for topic in self._ids.values() for row in raw(self._session, "seq_nr", "journal", topic)]
        return sorted(seq_nr for (seq_nr,) in found if seq_nr is not None)

    def close(self) -> None:
        self._store.close()


class Log:
    """Partition 0 of a topic: its actions, in order."""

    def __init__(self, topic: str | None = None) -> None:
        self.topic = topic or str(uuid.uuid4())
        self.actions: list[LoggedAction] = []

    @property
    def end(self) -> Position:
        return Position(1, len(self.actions) - 1)

    def add(self, entity: str, action: Action, value: bytes | None = None) -> Position:
        cursor = Position(1, len(self.actions))
        self.actions.append(LoggedAction(entity, cursor, 1_000 + cursor.offset, action, value))
        return cursor

    def append(self, entity: str, *seq_nrs: int, **more: object) -> Position:
        events = [NewEvent(Payload("json", b"%d" % len(self.actions)), seq_nr=seq_nr) for seq_nr in seq_nrs]
        encoding, value = payloads.encode(events)
        append_id = f"append-{len(self.actions)}"
        return self.add(entity, Append(seq_nrs[0], seq_nrs[-1], encoding, append_id, **more), value)

    def delete(self, entity: str, to: int) -> Position:
        return self.add(entity, Delete(to))

    def purge(self, entity: str) -> Position:
        return self.add(entity, Purge())

    def after(self, position: Position | None, until: Position | None = None) -> list[LoggedAction]:
        return [
            logged
            for logged in self.actions
            if (position is None or logged.cursor > position) and (until is None or logged.cursor <= until)
        ]

    def replicate(self, store: CassandraJournalStore, until: Position | None = None) -> None:
        """Apply what is not applied yet, as one batch."""
        until, pointer = until or self.end, store.pointers(self.topic).get(0)
        if pointer is None or pointer < until:
            store.apply(self.topic, 0, pointer, until, self.after(pointer, until))

    def replicate_in_steps(self, store: CassandraJournalStore, chance: random.Random, most: int = 6) -> None:
        """Apply the rest in batches of random sizes."""
        while (pointer := store.pointers(self.topic).get(0)) != self.end:
            done = -1 if pointer is None else pointer.offset
            self.replicate(store, Position(1, min(self.end.offset, done + chance.randint(1, most))))


def random_log(chance: random.Random, length: int = 24, entities: Sequence[str] = "ab") -> Log:
    """Appends with gaps, deletes, purges and new lives; some appends are void."""
    log = Log()
    own: dict[str, list[LoggedAction]] = defaultdict(list)
    for _ in range(length):
        entity = chance.choice(entities)
        pointer = model(own[entity], entity)[0] or 0
        dice = chance.random()
        if dice < 0.6:
            first = pointer + chance.choice([1, 1, 1, 1, 2, 5, 0])
            log.append(entity, *range(max(first, 1), max(first, 1) + chance.randint(1, 4)))
        elif dice < 0.78:
            log.delete(entity, chance.randint(1, pointer + 1))
        elif dice < 0.92:
            log.purge(entity)
        else:
            log.add(entity, Mark("m"))
        own[entity].append(log.actions[-1])
    return log


Seen = tuple[int | None, int | None, list[tuple[int, bytes]]]


def model(actions: Sequence[LoggedAction], entity: str) -> Seen:
    """The pointer, what is deleted, and the events: written without the fold."""
    pointer: int | None = None
    deleted: int | None = None
    events: dict[int, bytes] = {}
    for logged in actions:
        action = logged.action
        if logged.entity != entity:
            continue
        if isinstance(action, Append) and action.first > (pointer or 0):
            pointer = action.last
            events.update((row.event.seq_nr, row.event.payload.data) for row in payloads.rows(logged))
        elif isinstance(action, Delete):
            pointer = action.to if pointer is None else pointer
            deleted = max(deleted or 0, min(action.to, pointer))
            events = {seq_nr: data for seq_nr, data in events.items() if seq_nr > deleted}
        elif isinstance(action, Purge):
            pointer, deleted, events = None, None, {}
    return pointer, deleted, sorted(events.items())


class Stored(NamedTuple):
    """A journal as the store has it."""

    head: Head | None
    events: dict[int, bytes]
    end: Position | None


def read_store(store: CassandraJournalStore, log: Log, entity: str) -> Stored:
    with store.open(log.topic, 0, entity) as journal:
        found = {row.event.seq_nr: row.event.payload.data for row in journal.rows(1, MAX_SEQ_NR)}
        ends = [end for end in (journal.pointer, journal.head and journal.head.cursor) if end is not None]
    return Stored(journal.head, found, max(ends, default=None))


def read(store: CassandraJournalStore, log: Log, entity: str) -> Seen:
    """Read the store, and then the log from where the store ends."""
    return read_log(read_store(store, log, entity), log, entity, log.end)


def read_log(stored: Stored, log: Log, entity: str, mark: Position) -> Seen:
    """What was read from the store, with the actions of the log after it and up to the mark."""
    head, found, end = stored
    for logged in log.after(end, mark):
        if logged.entity != entity:
            continue
        head, verdict = fold(head, logged)
        if verdict is Verdict.APPLIED and isinstance(logged.action, Append):
            found = found | {row.event.seq_nr: row.event.payload.data for row in payloads.rows(logged)}
        elif head is None:
            found = {}
        found = {seq_nr: data for seq_nr, data in found.items() if seq_nr > ((head and head.delete_to) or 0)}
    return (head and head.seq_nr, head and head.delete_to, sorted(found.items()))
