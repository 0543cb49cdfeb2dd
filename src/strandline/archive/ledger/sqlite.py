"""The embedded ledger: one SQLite file that all processes of a machine share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from strandline import clock
from strandline.archive.ledger import rows
from strandline.archive.ledger.port import HourBook, Leases, Ledger, PeriodBook
from strandline.archive.model import ArchivedFile, Barrier, Claim, Decision, Hour, Period, Standing, Term
from strandline.engine import sql, sqlite
from strandline.engine.sqlite import Database
from strandline.errors import Conflict, NotFound, Unavailable

_SQL = sql.load("strandline.archive.ledger", "sqlite.sql")
_LAYOUT = 1


class SqliteLeases(Leases):
    """They run out on the machine's own clock, which nobody sets."""

    def __init__(self, db: Database, reader: Database, lease_ms: int, steady: Callable[[], int]) -> None:
        self._db = db
        self._reader = reader
        self._lease_ms = lease_ms
        self._steady = steady
        self._boot = clock.boot_id()

    def renew(self, owner: str, told: str = "") -> None:
        with self._db.transaction() as db:
            now_ms = self._steady()
            db.execute(_SQL["bury"], (self._boot, now_ms))
            db.execute(_SQL["renew"], (owner, self._boot, now_ms + self._lease_ms, told))

    def owners(self) -> dict[str, str]:
        return dict(self._reader.execute(_SQL["owners"], (self._boot, self._steady())))

    def take(self, owner: str, name: str) -> bool:
        # Mostly it is the owner's already, which costs no commit.
        if self._reader.execute(_SQL["has_lease"], (name, owner, self._boot, self._steady())):
            return True
        with self._db.transaction() as db:
            db.execute(_SQL["bury"], (self._boot, self._steady()))
            return bool(db.execute(_SQL["take"], (name, owner)))

    def release(self, owner: str, name: str) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["release"], (owner, name))

    def leave(self, owner: str) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["leave"], (owner,))


def _owned(db: Database, claim: Claim) -> None:
    if not db.execute(_SQL["is_owner"], (claim.event_type, claim.epoch)):
        raise rows.replaced(claim)


class SqliteHourBook(HourBook):
    def __init__(self, db: Database, reader: Database, now: Callable[[], int]) -> None:
        self._db = db
        self._reader = reader
        self._now = now

    def between(self, from_ms: int, to_ms: int, event_type: str | None = None) -> list[Hour]:
        if event_type is None:
            found = self._reader.execute(_SQL["hours"], (from_ms, to_ms))
        else:
            found = self._reader.execute(_SQL["hours_of"], (from_ms, to_ms, event_type))
        return [rows.hour(*row) for row in found]

    def set_barrier(self, claim: Claim, hours_ms: Collection[int], barrier: Barrier, grace_ms: int) -> None:
        with self._db.transaction() as db:
            _owned(db, claim)
            for hour_ms in hours_ms:
                rows.check_reading(hour_ms, barrier, grace_ms, self._now())
                db.execute(_SQL["set_barrier"], (claim.event_type, hour_ms, rows.text(barrier)))

    def flag(self, claim: Claim, hour_ms: int, path: str) -> Hour:
        where = (claim.event_type, hour_ms)
        with self._db.transaction() as db:
            _owned(db, claim)
            if db.execute(_SQL["unpublished_in"], where):
                raise Conflict(f"not all files of {path} are published")
            db.execute(_SQL["flag_hour"], (*where, path, self._now(), claim.epoch))
            (found,) = db.execute(_SQL["hours_of"], (hour_ms, hour_ms + 1, claim.event_type))
        return rows.hour(*found)

    def confirm(self, claim: Claim, hour_ms: int, revision: int) -> None:
        with self._db.transaction() as db:
            _owned(db, claim)
            db.execute(_SQL["confirm_hour"], (claim.event_type, hour_ms, revision))

    def unwritten(self, event_type: str) -> list[Hour]:
        return [rows.hour(*row) for row in self._reader.execute(_SQL["unwritten_hours"], (event_type,))]


class SqlitePeriodBook(PeriodBook):
    def __init__(self, db: Database, reader: Database) -> None:
        self._db = db
        self._reader = reader

    def unsettled(self) -> dict[str, int]:
        return dict(self._reader.execute(_SQL["unsettled"]))

    def revisions(self, paths: Collection[str]) -> dict[str, int]:
        return dict(self._reader.execute(_SQL["revisions"], (rows.text([*paths]),)))

    def flag(self, path: str, start_ms: int, children: Mapping[str, int]) -> Period:
        with self._db.transaction() as db:
            before = [rows.period(*row) for row in db.execute(_SQL["period"], (path,))]
            if not before or before[0].children != children:
                rows.check_children(before[0].children if before else {}, children)
                db.execute(_SQL["flag_period"], (path, start_ms, rows.text(children)))
            (found,) = db.execute(_SQL["period"], (path,))
        return rows.period(*found)

    def confirm(self, period: Period) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["confirm_period"], (period.path, period.revision))

    def settle(self, children: Mapping[str, int]) -> None:
        with self._db.transaction() as db:
            db.execute_many(_SQL["settle_hour"], children.items())
            db.execute_many(_SQL["settle_period"], children.items())

    def unwritten(self) -> list[Period]:
        return [rows.period(*row) for row in self._reader.execute(_SQL["unwritten_periods"])]

    def between(self, from_ms: int, to_ms: int) -> list[Period]:
        return [rows.period(*row) for row in self._reader.execute(_SQL["periods"], (from_ms, to_ms))]


class SqliteLedger(Ledger):
    def __init__(
        self, path: Path, *, lease_ms: int, now: Callable[[], int], steady: Callable[[], int] = clock.boot_ms
    ) -> None:
        """`now` is the ledger's clock, `steady` the one that leases run out on."""
        sqlite.check_library()
        sqlite.make_directory(path.parent)
        self._now = now
        self._db = Database(path, create=True)
        with self._db.transaction() as db:
            (layout,) = db.execute("PRAGMA user_version")[0]
            if layout > _LAYOUT:
                raise Unavailable(f"{path} was written by a newer Strandline (layout {layout}); upgrade this one")
            db.execute(_SQL["create"])
            db.execute(f"PRAGMA user_version = {_LAYOUT}")
        # Lookups never wait behind a commit, and see our own commits like those of anybody else.
        self._reader = Database(path)
        self.leases = SqliteLeases(self._db, self._reader, lease_ms, steady)
        self.hours = SqliteHourBook(self._db, self._reader, now)
        self.periods = SqlitePeriodBook(self._db, self._reader)

    def now_ms(self) -> int:
        return self._now()

    def terms(self) -> list[Term]:
        return [Term(*row) for row in self._reader.execute(_SQL["terms"])]

    def open_term(self, event_type: str, from_ms: int) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["open_term"], (event_type, from_ms))

    def close_term(self, event_type: str, to_ms: int) -> None:
        with self._db.transaction() as db:
            gone = db.execute(_SQL["drop_empty_term"], (event_type, to_ms))
            if not gone and not db.execute(_SQL["close_term"], (event_type, to_ms)):
                raise NotFound(f"event type {event_type!r} is not archived")

    def claim(self, event_type: str, entry_id: str) -> Claim:
        with self._db.transaction() as db:
            ((epoch, incarnation, known),) = db.execute(_SQL["claim"], (event_type, entry_id))
            if known != entry_id:
                ((incarnation,),) = db.execute(_SQL["made_anew"], (event_type, entry_id))
                db.execute(_SQL["forget_partitions"], (event_type,))
                db.execute(_SQL["forget_barriers"], (event_type,))
        return Claim(event_type, epoch, incarnation)

    def standing(self, event_type: str) -> Standing | None:
        return rows.standing(self._reader.execute(_SQL["standing"], (event_type,)))

    def decide(self, claim: Claim, decision: Decision) -> None:
        name = claim.event_type
        rows.check_counts(decision)
        with self._db.transaction() as db:
            _owned(db, claim)
            stand = dict(rows.partition(*row) for row in db.execute(_SQL["partitions"], (name,)))
            rows.check_start(decision, stand)
            stored = [rows.stored_values(name, number, one) for number, one in decision.stored.items()]
            db.execute_many(_SQL["store"], stored)
            _add_files(db, name, decision.files)
            db.execute(_SQL["count"], (name, decision.read_ms, *msgspec.structs.astuple(decision.counts)))

    def publishing(self, event_type: str) -> list[ArchivedFile]:
        return [ArchivedFile(*row) for row in self._reader.execute(_SQL["publishing"], (event_type,))]

    def published(self, claim: Claim, paths: Sequence[str]) -> None:
        with self._db.transaction() as db:
            _owned(db, claim)
            db.execute_many(_SQL["publish"], [(claim.event_type, path) for path in paths])

    def files(self, event_type: str, hour_ms: int) -> list[ArchivedFile]:
        return [ArchivedFile(*row) for row in self._reader.execute(_SQL["files"], (event_type, hour_ms))]

    def close(self) -> None:
        self._reader.close()
        self._db.close()


def _add_files(db: Database, event_type: str, files: Sequence[ArchivedFile]) -> None:
    hours = rows.text(sorted({file.hour_ms for file in files}))
    flagged = {found for (found,) in db.execute(_SQL["flagged_among"], (event_type, hours))}
    listed = [found for (found,) in db.execute(_SQL["listed_among"], (rows.text([f.path for f in files]),))]
    rows.check_files(files, listed, flagged)
    db.execute_many(_SQL["add_file"], [rows.file_values(event_type, file) for file in files])
    late = {file.hour_ms for file in files if file.kind == "late"}
    db.execute_many(_SQL["make_stale"], [(event_type, hour_ms) for hour_ms in late])
