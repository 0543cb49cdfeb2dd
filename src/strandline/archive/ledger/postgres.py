"""The ledger that archive processes on several machines share: in the catalog's PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from strandline.archive.ledger import rows
from strandline.archive.ledger.port import HourBook, Leases, Ledger, PeriodBook
from strandline.archive.model import ArchivedFile, Barrier, Claim, Decision, Hour, Period, Standing, Term
from strandline.engine import sql
from strandline.engine.postgres import Postgres, Session, is_plain
from strandline.errors import Conflict, NotFound

_SQL = sql.load("strandline.archive.ledger", "postgres.sql")
_T = TypeVar("_T")


class _Place:
    """The database, its clock, and a turn for whoever changes something of an event type."""

    def __init__(self, url: str, now: Callable[[], int | None]) -> None:
        self.now = now
        self.database = Postgres(url)
        self.fetch = self.database.fetch
        try:
            self.database.transaction(_make)
        except BaseException:
            self.database.close()
            raise

    def clock(self, db: Session) -> int:
        return int(db.execute(_SQL["now"], (self.now(),))[0][0])

    def change(self, claim: Claim, work: Callable[[Session], _T]) -> _T:
        """Do the work while nobody else changes the event type; LeaseLost if somebody claimed it since."""

        def owned(db: Session) -> _T:
            if not db.execute(_SQL["own"], (claim.event_type, claim.epoch)):
                raise rows.replaced(claim)
            return work(db)

        return self.database.transaction(owned)


def _make(db: Session) -> None:
    db.execute(_SQL["turn"])
    if not db.execute(_SQL["is_made"])[0][0]:
        db.execute(_SQL["create"])


class PostgresLeases(Leases):
    def __init__(self, place: _Place, lease_ms: int) -> None:
        self._place = place
        self._lease_ms = lease_ms

    def renew(self, owner: str, told: str = "") -> None:
        def work(db: Session) -> None:
            now_ms = self._bury(db)
            db.execute(_SQL["renew"], (owner, now_ms + self._lease_ms, told))

        self._place.database.transaction(work)

    def owners(self) -> dict[str, str]:
        return dict(self._place.fetch(_SQL["owners"], (self._place.now(),)))

    def take(self, owner: str, name: str) -> bool:
        # Mostly it is the owner's already, which costs no commit.
        if self._place.fetch(_SQL["has_lease"], (name, owner, self._place.now())):
            return True

        def work(db: Session) -> bool:
            self._bury(db)
            return bool(db.execute(_SQL["take"], (name, owner)))

        return self._place.database.transaction(work)

    def _bury(self, db: Session) -> int:
        db.execute(_SQL["lease_turn"])
        now_ms = self._place.clock(db)
        db.execute(_SQL["bury"], (now_ms,))
        return now_ms

    def release(self, owner: str, name: str) -> None:
        self._place.database.transaction(lambda db: db.execute(_SQL["release"], (owner, name)))

    def leave(self, owner: str) -> None:
        self._place.database.transaction(lambda db: db.execute(_SQL["leave"], (owner,)))


class PostgresHourBook(HourBook):
    def __init__(self, place: _Place) -> None:
        self._place = place

    def between(self, from_ms: int, to_ms: int, event_type: str | None = None) -> list[Hour]:
        if event_type is None:
            found = self._place.fetch(_SQL["hours"], (from_ms, to_ms))
        else:
            known = is_plain(event_type)
            found = self._place.fetch(_SQL["hours_of"], (from_ms, to_ms, event_type)) if known else []
        return [rows.hour(*row) for row in found]

    def set_barrier(self, claim: Claim, hours_ms: Collection[int], barrier: Barrier, grace_ms: int) -> None:
        def work(db: Session) -> None:
            now_ms = self._place.clock(db)
            for hour_ms in hours_ms:
                rows.check_reading(hour_ms, barrier, grace_ms, now_ms)
            text = rows.text(barrier)
            db.execute_many(_SQL["set_barrier"], [(claim.event_type, hour_ms, text) for hour_ms in hours_ms])

        self._place.change(claim, work)

    def flag(self, claim: Claim, hour_ms: int, path: str) -> Hour:
        where = (claim.event_type, hour_ms)

        def work(db: Session) -> Hour:
            if db.execute(_SQL["unpublished_in"], where):
                raise Conflict(f"not all files of {path} are published")
            db.execute(_SQL["flag_hour"], (*where, path, self._place.clock(db), claim.epoch))
            (found,) = db.execute(_SQL["hours_of"], (hour_ms, hour_ms + 1, claim.event_type))
            return rows.hour(*found)

        return self._place.change(claim, work)

    def confirm(self, claim: Claim, hour_ms: int, revision: int) -> None:
        values = (revision, claim.event_type, hour_ms, revision)
        self._place.change(claim, lambda db: db.execute(_SQL["confirm_hour"], values))

    def unwritten(self, event_type: str) -> list[Hour]:
        return [rows.hour(*row) for row in self._place.fetch(_SQL["unwritten_hours"], (event_type,))]


class PostgresPeriodBook(PeriodBook):
    def __init__(self, place: _Place) -> None:
        self._place = place

    def unsettled(self) -> dict[str, int]:
        return dict(self._place.fetch(_SQL["unsettled"]))

    def revisions(self, paths: Collection[str]) -> dict[str, int]:
        asked = [*paths]
        return dict(self._place.fetch(_SQL["revisions"], (asked, asked)))

    def flag(self, path: str, start_ms: int, children: Mapping[str, int]) -> Period:
        def work(db: Session) -> Period:
            db.execute(_SQL["period_turn"], (path,))
            before = [rows.period(*row) for row in db.execute(_SQL["period"], (path,))]
            if not before or before[0].children != children:
                rows.check_children(before[0].children if before else {}, children)
                db.execute(_SQL["flag_period"], (path, start_ms, rows.text(children)))
            (found,) = db.execute(_SQL["period"], (path,))
            return rows.period(*found)

        return self._place.database.transaction(work)

    def confirm(self, period: Period) -> None:
        values = (period.revision, period.path, period.revision)
        self._place.database.transaction(lambda db: db.execute(_SQL["confirm_period"], values))

    def settle(self, children: Mapping[str, int]) -> None:
        # In one order: two that settle the same must not wait for each other.
        values = [(revision, path) for path, revision in sorted(children.items())]

        def work(db: Session) -> None:
            db.execute_many(_SQL["settle_hour"], values)
            db.execute_many(_SQL["settle_period"], values)

        self._place.database.transaction(work)

    def unwritten(self) -> list[Period]:
        return [rows.period(*row) for row in self._place.fetch(_SQL["unwritten_periods"])]

    def between(self, from_ms: int, to_ms: int) -> list[Period]:
        return [rows.period(*row) for row in self._place.fetch(_SQL["periods"], (from_ms, to_ms))]


class PostgresLedger(Ledger):
    """It goes by the server's clock, or by `now` if that gives a time."""

    def __init__(self, url: str, *, lease_ms: int, now: Callable[[], int | None] = lambda: None) -> None:
        self._place = _Place(url, now)
        self.leases = PostgresLeases(self._place, lease_ms)
        self.hours = PostgresHourBook(self._place)
        self.periods = PostgresPeriodBook(self._place)

    def now_ms(self) -> int:
        return int(self._place.fetch(_SQL["now"], (self._place.now(),))[0][0])

    def terms(self) -> list[Term]:
        return [Term(*row) for row in self._place.fetch(_SQL["terms"])]

    def open_term(self, event_type: str, from_ms: int) -> None:
        self._place.database.transaction(lambda db: db.execute(_SQL["open_term"], (event_type, from_ms)))

    def close_term(self, event_type: str, to_ms: int) -> None:
        def work(db: Session) -> None:
            gone = db.execute(_SQL["drop_empty_term"], (event_type, to_ms))
            if not gone and not db.execute(_SQL["close_term"], (to_ms, event_type)):
                raise NotFound(f"event type {event_type!r} is not archived")

        self._place.database.transaction(work)

    def claim(self, event_type: str, entry_id: str) -> Claim:
        def work(db: Session) -> Claim:
            ((epoch, incarnation, known),) = db.execute(_SQL["claim"], (event_type, entry_id))
            if known != entry_id:
                ((incarnation,),) = db.execute(_SQL["made_anew"], (entry_id, event_type))
                db.execute(_SQL["forget_partitions"], (event_type,))
                db.execute(_SQL["forget_barriers"], (event_type,))
            return Claim(event_type, epoch, incarnation)

        return self._place.database.transaction(work)

    def standing(self, event_type: str) -> Standing | None:
        return rows.standing(self._place.fetch(_SQL["standing"], (event_type,)) if is_plain(event_type) else [])

    def decide(self, claim: Claim, decision: Decision) -> None:
        name = claim.event_type
        rows.check_counts(decision)

        def work(db: Session) -> None:
            stand = dict(rows.partition(*row) for row in db.execute(_SQL["partitions"], (name,)))
            rows.check_start(decision, stand)
            stored = [rows.stored_values(name, number, one) for number, one in decision.stored.items()]
            db.execute_many(_SQL["store"], stored)
            _add_files(db, name, decision.files)
            db.execute(_SQL["count"], (decision.read_ms, *msgspec.structs.astuple(decision.counts), name))

        self._place.change(claim, work)

    def publishing(self, event_type: str) -> list[ArchivedFile]:
        return [ArchivedFile(*row) for row in self._place.fetch(_SQL["publishing"], (event_type,))]

    def published(self, claim: Claim, paths: Sequence[str]) -> None:
        values = (claim.event_type, [*paths])
        self._place.change(claim, lambda db: db.execute(_SQL["publish"], values))

    def files(self, event_type: str, hour_ms: int) -> list[ArchivedFile]:
        found = self._place.fetch(_SQL["files"], (event_type, hour_ms)) if is_plain(event_type) else []
        return [ArchivedFile(*row) for row in found]

    def close(self) -> None:
        self._place.database.close()


def _add_files(db: Session, event_type: str, files: Sequence[ArchivedFile]) -> None:
    hours = sorted({file.hour_ms for file in files})
    flagged = {found for (found,) in db.execute(_SQL["flagged_among"], (event_type, hours))}
    listed = [found for (found,) in db.execute(_SQL["listed_among"], ([file.path for file in files],))]
    rows.check_files(files, listed, flagged)
    db.execute_many(_SQL["add_file"], [rows.file_values(event_type, file) for file in files])
    late = sorted({file.hour_ms for file in files if file.kind == "late"})
    db.execute(_SQL["make_stale"], (event_type, late))
