"""How a change of messages is stored: a statement of its own, or together with the changes of other callers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import Any, cast

import msgspec

from strandline import failpoints
from strandline.engine import sql
from strandline.engine.database import Database, Rows, Tables, Transaction
from strandline.errors import OutcomeUnknown
from strandline.log.combining import Combiner
from strandline.schedule.model import Body
from strandline.schedule.storage.rows import GIVEN, NEW, Row, columns, moves

_TIMEOUT_SECONDS = 30.0
# A group holds the file's lock, or is one statement of a server, whose size is limited.
_GROUP_ROWS = 2_000
_GROUP_BYTES = 8 << 20
# With a server, larger changes do not wait for others: there the rows are the work, not the statements.
_SMALL = 16
# Changes of one kind wait for each other, except in schedules of different slots.
_SLOTS = 4
_THREADS = 8


class StoreClock:
    """The time of a store: the server's clock, or `now`. A test shifts it by `offset`."""

    def __init__(self, now: Callable[[], int] | None = None, offset: Callable[[], int] = lambda: 0) -> None:
        self._now = now
        self._offset = offset

    def parameters(self) -> dict[str, int | None]:
        """The parameters of the part `clock`."""
        return {"now_ms": self._now() if self._now else None, "offset_ms": self._offset()}


class Change(msgspec.Struct, frozen=True):
    """A statement that changes messages, with its items; an id occurs once. New messages have bodies."""

    name: str
    schedule: str
    rows: Sequence[Row]
    bodies: Mapping[str, Body] | None = None

    @property
    def weight(self) -> float:
        """The part of a group that it fills."""
        size = sum(len(body.content) for body in self.bodies.values()) if self.bodies else 0
        return max(len(self.rows) / _GROUP_ROWS, size / _GROUP_BYTES)


class Writes(ABC):
    @abstractmethod
    def run(self, change: Change) -> Rows:
        """Store a change durably with its counts and bodies; returns the rows that it changed."""

    @abstractmethod
    def apply(self, tx: Transaction, change: Change) -> Rows:
        """The same as a part of the caller's transaction."""

    @abstractmethod
    def close(self) -> None:
        """Finish the changes that were begun."""


class ServerWrites(Writes):
    """Each change is one statement. Small ones of concurrent callers share it: it costs more than its rows."""

    def __init__(self, tables: Tables, clock: StoreClock) -> None:
        self._tables = tables
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="strandline-schedule")
        self._lines: dict[tuple[str, int], _Line] = {}

    def run(self, change: Change) -> Rows:
        rows = self._store(change) if len(change.rows) > _SMALL else _done(self._line(change), change)
        failpoints.hit("schedule.stored")
        return rows

    def _line(self, change: Change) -> _Line:
        place = (change.name, hash(change.schedule) % _SLOTS)
        found = self._lines.get(place)
        if found is None:
            made = _combiner(partial(_stored, self._attempt), self._threads)
            found = self._lines.setdefault(place, made)
        return found

    def _store(self, change: Change) -> Rows:
        rows = self._tables.store(change.name, **self._values(change))
        failpoints.hit("schedule.changed")
        return rows

    def _attempt(self, change: Change) -> Rows | Exception:
        """Other statements of the group may have been stored, so that an error is the answer to this one only."""
        try:
            return self._store(change)
        except Exception as error:  # noqa: BLE001 - the callers get it as it is
            return error

    def apply(self, tx: Transaction, change: Change) -> Rows:
        return tx.run(change.name, **self._values(change))

    def _values(self, change: Change) -> dict[str, Any]:
        # All callers lock the rows in the same order, so that they do not block each other.
        ordered = sorted(change.rows, key=lambda row: (row[1], row[0]))
        values: dict[str, Any] = columns(GIVEN if change.bodies is None else NEW, ordered)
        if change.bodies is not None:
            bodies = [change.bodies[name] for name in values["ids"]]
            values |= {"bodies": [body.content for body in bodies], "jsons": [body.is_json for body in bodies]}
        return {"schedule": change.schedule, **values, **self._clock.parameters()}

    def close(self) -> None:
        for line in [*self._lines.values()]:
            line.finish()
        self._threads.shutdown()


class FileWrites(Writes):
    """Concurrent changes share a transaction, and those of the same kind share their statements as well."""

    def __init__(self, tables: Tables, clock: StoreClock) -> None:
        self._tables = tables
        self._clock = clock
        self._own = sql.load("strandline.schedule.storage", "combined.sql", "sqlite")
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="strandline-schedule")
        self._line = _combiner(self._store, self._threads)

    def run(self, change: Change) -> Rows:
        rows = _done(self._line, change)
        failpoints.hit("schedule.stored")
        return rows

    def _store(self, changes: Sequence[Change]) -> list[Rows | Exception]:
        return self._tables.transaction(lambda tx: _stored(partial(self.apply, tx), changes))

    def apply(self, tx: Transaction, change: Change) -> Rows:
        rows = tx.run(change.name, schedule=change.schedule, items=[*change.rows], **self._clock.parameters())
        failpoints.hit("schedule.changed")
        own = Transaction(tx.session, self._own)
        if change.bodies is not None:
            own.run_many("add_body", [_body_values(row, change.bodies[row[0]]) for row in rows])
        if moved := moves(rows):
            own.run("count", moves=moved)
        failpoints.hit("schedule.changed")
        return rows

    def close(self) -> None:
        self._line.finish()
        self._threads.shutdown()


_Line = Combiner[Change, Rows]


def _combiner(store: Callable[[Sequence[Change]], list[Rows | Exception]], threads: ThreadPoolExecutor) -> _Line:
    return Combiner(store, threads, weight=attrgetter("weight"))


def _done(line: _Line, change: Change) -> Rows:
    try:
        return line.do(change, _TIMEOUT_SECONDS)
    except TimeoutError as error:
        raise OutcomeUnknown(f"the change of {change.schedule} was not stored in time") from error


def _stored(store: Callable[[Change], Rows | Exception], changes: Sequence[Change]) -> list[Rows | Exception]:
    """Store changes, several with one statement; returns the rows of each, or its error."""
    if len(changes) == 1:
        return [store(changes[0])]
    results: list[Rows | Exception] = [[] for _ in changes]
    for together in _batches(changes):
        found = store(_as_one([changes[number] for number in together]))
        if isinstance(found, Exception):
            results = [found if number in together else result for number, result in enumerate(results)]
            continue
        rows_of = {row[0]: results[number] for number in together for row in changes[number].rows}
        for row in found:
            cast("Rows", rows_of[row[0]]).append(row)
    return results


def _as_one(changes: Sequence[Change]) -> Change:
    first = changes[0]
    rows = [row for change in changes for row in change.rows]
    bodies = None if first.bodies is None else _all_bodies(changes)
    return Change(first.name, first.schedule, rows, bodies)


def _batches(changes: Sequence[Change]) -> list[list[int]]:
    """The numbers of the changes that can share a statement: of the same kind, and without a common id."""
    batches: list[tuple[tuple[str, str], set[str], list[int]]] = []
    for number, change in enumerate(changes):
        kind, ids = (change.name, change.schedule), {row[0] for row in change.rows}
        for known, taken, numbers in batches:
            if known == kind and taken.isdisjoint(ids):
                taken.update(ids)
                numbers.append(number)
                break
        else:
            batches.append((kind, ids, [number]))
    return [numbers for _, _, numbers in batches]


def _all_bodies(changes: Sequence[Change]) -> dict[str, Body]:
    return {name: body for change in changes for name, body in (change.bodies or {}).items()}


def _body_values(row: Row, body: Body) -> dict[str, Any]:
    values = {"id": row[0], "producer_group": row[4], "schedule": row[11], "lane": row[12]}
    return {**values, "is_json": body.is_json, "body": body.content}


def open_writes(database: Database, tables: Tables, clock: StoreClock) -> Writes:
    """A server has concurrent writers; a SQLite file has one writer at a time."""
    kind = ServerWrites if database.shared else FileWrites
    return kind(tables, clock)
