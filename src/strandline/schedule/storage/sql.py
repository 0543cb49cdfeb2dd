"""Schedules in a SQL database: a file that the processes of a machine share, or a server for several machines."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from strandline.engine.database import Database, Signals, Tables, Transaction
from strandline.schedule import rules
from strandline.schedule.model import Schedule
from strandline.schedule.storage.due import SqlDueMessages, SqlSessions
from strandline.schedule.storage.messages import MessageTables, SqlMessages
from strandline.schedule.storage.port import ScheduleStore
from strandline.schedule.storage.relays import SqlRelays
from strandline.schedule.storage.writes import StoreClock, open_writes

# The statements name the lanes.
_LANES = {"sqlite": 1, "postgres": 16}
_CHANNEL = "strandline_schedule"
# A statement that began before a schedule was deleted has ended by then.
_FORGET_MS = 3_600_000
# One statement must end before the timeout of the server, also on a slow machine.
_FOLDED_AT_ONCE = 2_000
# A new row begins with the version of its second. So a tombstone stays until the second of its row is over.
_SHORTEST_DEDUPE_MS = 1_000


class SqlSchedules(ScheduleStore):
    """`now` is the clock of a SQLite store, and replaces the server's clock in a test; `offset` shifts either."""

    def __init__(
        self, database: Database, now: Callable[[], int] | None = None, offset: Callable[[], int] = lambda: 0
    ) -> None:
        self._database = database
        self._tables = Tables(database, "schedule", "strandline.schedule.storage", "schedule.sql")
        self._clock = StoreClock(now, offset)
        self._writes = open_writes(database, self._tables, self._clock)
        shared = MessageTables(self._tables, self._writes, self._clock, _LANES[database.dialect])
        self.messages = SqlMessages(shared)
        self.due = SqlDueMessages(shared)
        self.sessions = SqlSessions(shared)
        self.relays = SqlRelays(shared)

    def create(self, schedule: Schedule) -> bool:
        rules.check_schedule(schedule)
        return bool(self._tables.store("put", **msgspec.structs.asdict(schedule)))

    def put(self, schedule: Schedule) -> bool:
        while True:
            if self.create(schedule):
                return True
            if self._tables.store("change", **msgspec.structs.asdict(schedule)):
                return False
            if (before := self.get(schedule.name)) is not None:  # otherwise it was deleted in between
                rules.check_change(before, schedule)
                self.relays.check_settings(schedule)

    def get(self, name: str) -> Schedule | None:
        found = self._tables.fetch("schedule", name=name)
        return Schedule(*found[0]) if found else None

    def all(self) -> list[Schedule]:
        return [Schedule(*row) for row in self._tables.fetch("schedules")]

    def delete(self, name: str) -> bool:
        return bool(self._tables.store("delete_schedule", name=name, **self._clock.parameters()))

    def now_ms(self) -> int:
        return int(self._tables.fetch("now", **self._clock.parameters())[0][0])

    def fold(self) -> int:
        folded, last = 0, _FOLDED_AT_ONCE
        while last == _FOLDED_AT_ONCE:
            last = int(self._tables.store("fold", limit=_FOLDED_AT_ONCE)[0][0])
            folded += last
        return folded

    def purge(self, limit: int) -> int:
        removed = 0
        for number, gone, before_ms, now_ms, deleted_ms in self._tables.fetch(
            "kept_schedules", shortest_ms=_SHORTEST_DEDUPE_MS, **self._clock.parameters()
        ):
            removed += self._purge(number, bool(gone), before_ms, limit - removed)
            forgotten_ms = now_ms - _FORGET_MS
            if removed < limit:
                self._tidy(number, bool(gone), forgotten_ms, may_end=bool(gone) and deleted_ms < forgotten_ms)
        return removed

    def _purge(self, number: int, gone: bool, before_ms: int, limit: int) -> int:
        def work(tx: Transaction) -> int:
            if gone:
                found = tx.run("leftovers", number=number, limit=limit)
            else:
                found = tx.run("tombstones", number=number, before_ms=before_ms, limit=limit)
            for lane in {lane for lane, _ in found}:
                ids = [message_id for its_lane, message_id in found if its_lane == lane]
                tx.run("remove_bodies", number=number, lane=lane, ids=ids)
                tx.run("remove_messages", number=number, lane=lane, ids=ids)
            return len(found)

        return self._tables.transaction(work) if limit > 0 else 0

    def _tidy(self, number: int, gone: bool, before_ms: int, *, may_end: bool) -> None:
        """Remove what else is no longer needed: empty counts of the past, consumers and nodes that are gone."""

        def work(tx: Transaction) -> None:
            tx.run("remove_slots", number=number, gone=gone, before_ms=before_ms)
            tx.run("remove_consumers", number=number, before_ms=before_ms)
            tx.run("remove_nodes", before_ms=before_ms)
            if may_end:
                tx.run("remove_schedule", number=number)

        self._tables.transaction(work)

    def data_version(self) -> int | None:
        return self._database.data_version()

    def signals(self) -> Signals | None:
        return self._database.signals(_CHANNEL)

    def close(self) -> None:
        self._writes.close()
