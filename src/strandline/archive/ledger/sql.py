"""The ledger in a SQL database: a file that the processes of a machine share, or a server for several machines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from strandline.archive import readiness
from strandline.archive.ledger import rows
from strandline.archive.ledger.port import HourBook, Leases, Ledger, PeriodBook
from strandline.archive.model import (
    HOUR_MS,
    ArchivedFile,
    Barrier,
    Claim,
    Decision,
    ExpiredRange,
    Hour,
    Location,
    Period,
    Standing,
    Term,
)
from strandline.engine.database import Database, LeaseClock, Tables, Transaction, is_plain
from strandline.engine.process_leases import ProcessLeases
from strandline.errors import Conflict, NotFound

_T = TypeVar("_T")
_LEASES = "strandline archive leases"


class LedgerTables(Tables):
    """The ledger's tables and its wall clock."""

    def __init__(self, database: Database, now: Callable[[], int] | None) -> None:
        super().__init__(database, "archive", "strandline.archive.ledger", "ledger.sql")
        self._now = now

    def now_ms(self, tx: Transaction | None = None) -> int:
        if self._now is not None:
            return self._now()
        found = self.fetch("now") if tx is None else tx.run("now")
        return int(found[0][0])

    def change(self, claim: Claim, work: Callable[[Transaction], _T]) -> _T:
        """A transaction in which no other process changes the event type; LeaseLost if the claim was replaced."""

        def owned(tx: Transaction) -> _T:
            if not tx.run("own", event_type=claim.event_type, epoch=claim.epoch):
                raise rows.replaced(claim)
            return work(tx)

        return self.transaction(owned)


class SqlLedgerLeases(ProcessLeases, Leases):
    """The leases of the archive's processes."""


class SqlHourBook(HourBook):
    def __init__(self, tables: LedgerTables) -> None:
        self._tables = tables

    def between(self, from_ms: int, to_ms: int, event_type: str | None = None) -> list[Hour]:
        if event_type is None:
            found = self._tables.fetch("hours", from_ms=from_ms, to_ms=to_ms)
        elif is_plain(event_type):
            found = self._tables.fetch("hours_of", from_ms=from_ms, to_ms=to_ms, event_type=event_type)
        else:
            found = []
        return [rows.hour(*row) for row in found]

    def set_barrier(self, claim: Claim, hours_ms: Collection[int], barrier: Barrier, grace_ms: int) -> None:
        text = rows.text(barrier)

        def work(tx: Transaction) -> None:
            now_ms = self._tables.now_ms(tx)
            for hour_ms in hours_ms:
                rows.check_reading(hour_ms, barrier, grace_ms, now_ms)
            values = [{"event_type": claim.event_type, "hour_ms": ms, "barrier": text} for ms in hours_ms]
            tx.run_many("set_barrier", values)

        self._tables.change(claim, work)

    def flag(self, claim: Claim, hour_ms: int, path: str) -> Hour:
        name = claim.event_type

        def work(tx: Transaction) -> Hour:
            if tx.run("unpublished_in", event_type=name, hour_ms=hour_ms):
                raise Conflict(f"not all files of {path} are published")
            now_ms = self._tables.now_ms(tx)
            tx.run("flag_hour", event_type=name, hour_ms=hour_ms, path=path, now_ms=now_ms, epoch=claim.epoch)
            (found,) = tx.run("hours_of", from_ms=hour_ms, to_ms=hour_ms + 1, event_type=name)
            return rows.hour(*found)

        return self._tables.change(claim, work)

    def confirm(self, claim: Claim, hour_ms: int, revision: int) -> None:
        values = {"event_type": claim.event_type, "hour_ms": hour_ms, "revision": revision}
        self._tables.change(claim, lambda tx: tx.run("confirm_hour", **values))

    def unwritten(self, event_type: str) -> list[Hour]:
        return [rows.hour(*row) for row in self._tables.fetch("unwritten_hours", event_type=event_type)]

    def with_data(self, event_type: str) -> list[Hour]:
        return [rows.hour(*row) for row in self._tables.fetch("unflagged_data", event_type=event_type)]

    def gaps(self, event_type: str, first_ms: int, last_ms: int) -> list[ExpiredRange]:
        if not is_plain(event_type):
            return []
        found = self._tables.fetch("gaps", event_type=event_type, first_ms=first_ms, last_ms=last_ms)
        return [rows.gap(*row) for row in found]

    def newest_path(self, event_type: str) -> tuple[int, str] | None:
        found = self._tables.fetch("newest_path", event_type=event_type)
        return (int(found[0][0]), str(found[0][1])) if found else None


class SqlPeriodBook(PeriodBook):
    def __init__(self, tables: LedgerTables) -> None:
        self._tables = tables

    def unsettled(self) -> dict[str, int]:
        return dict(self._tables.fetch("unsettled"))

    def revisions(self, paths: Collection[str]) -> dict[str, int]:
        return dict(self._tables.fetch("revisions", paths=[*paths]))

    def flag(self, path: str, start_ms: int, children: Mapping[str, int]) -> Period:
        def work(tx: Transaction) -> Period:
            tx.run("lock", name=path, seed=1)
            before = [rows.period(*row) for row in tx.run("period", path=path)]
            if not before or before[0].children != children:
                rows.check_children(before[0].children if before else {}, children)
                tx.run("flag_period", path=path, start_ms=start_ms, children=rows.text(children))
            (found,) = tx.run("period", path=path)
            return rows.period(*found)

        return self._tables.transaction(work)

    def confirm(self, period: Period) -> None:
        values = {"path": period.path, "revision": period.revision}
        self._tables.transaction(lambda tx: tx.run("confirm_period", **values))

    def settle(self, children: Mapping[str, int]) -> None:
        # Sorted, so that two processes that settle the same directories do not deadlock.
        values = [{"path": path, "revision": revision} for path, revision in sorted(children.items())]

        def work(tx: Transaction) -> None:
            tx.run_many("settle_hour", values)
            tx.run_many("settle_period", values)

        self._tables.transaction(work)

    def unwritten(self) -> list[Period]:
        return [rows.period(*row) for row in self._tables.fetch("unwritten_periods")]

    def between(self, from_ms: int, to_ms: int) -> list[Period]:
        return [rows.period(*row) for row in self._tables.fetch("periods", from_ms=from_ms, to_ms=to_ms)]


class SqlLedger(Ledger):
    """Uses the database's clocks, unless `now` and `lease_now` replace them."""

    def __init__(
        self,
        database: Database,
        *,
        lease_ms: int,
        now: Callable[[], int] | None = None,
        lease_now: Callable[[], int] | None = None,
    ) -> None:
        self._tables = LedgerTables(database, now)
        self.leases = SqlLedgerLeases(self._tables, LeaseClock(database, lease_now), lease_ms, _LEASES)
        self.hours = SqlHourBook(self._tables)
        self.periods = SqlPeriodBook(self._tables)

    def now_ms(self) -> int:
        return self._tables.now_ms()

    def terms(self) -> list[Term]:
        return [Term(*row) for row in self._tables.fetch("terms")]

    def open_term(self, event_type: str, from_ms: int) -> None:
        self._tables.transaction(lambda tx: tx.run("open_term", event_type=event_type, from_ms=from_ms))

    def close_term(self, event_type: str, to_ms: int) -> None:
        def work(tx: Transaction) -> None:
            dropped = tx.run("drop_empty_term", event_type=event_type, to_ms=to_ms)
            if not dropped and not tx.run("close_term", event_type=event_type, to_ms=to_ms):
                raise NotFound(f"event type {event_type!r} is not archived")
            _cover_data(tx, event_type)

        self._tables.transaction(work)

    def location(self, event_type: str) -> Location | None:
        found = self._tables.fetch("place", event_type=event_type)
        return Location(*found[0]) if found else None

    def set_location(self, event_type: str, location: Location) -> None:
        values = {"event_type": event_type, "root": location.root, "template": location.template}
        self._tables.transaction(lambda tx: tx.run("set_place", **values))

    def claim(self, event_type: str, entry_id: str) -> Claim:
        def work(tx: Transaction) -> Claim:
            ((epoch, incarnation, known),) = tx.run("claim", event_type=event_type, entry_id=entry_id)
            if known != entry_id:
                ((incarnation,),) = tx.run("replace_entry", event_type=event_type, entry_id=entry_id)
                tx.run("forget_partitions", event_type=event_type)
                tx.run("forget_barriers", event_type=event_type)
                tx.run("forget_empty_hours", event_type=event_type)
            _cover_data(tx, event_type)
            return Claim(event_type, epoch, incarnation)

        return self._tables.transaction(work)

    def standing(self, event_type: str) -> Standing | None:
        found = self._tables.fetch("standing", event_type=event_type) if is_plain(event_type) else []
        return rows.standing(found)

    def decide(self, claim: Claim, decision: Decision) -> None:
        name = claim.event_type
        rows.check_counts(decision)

        def work(tx: Transaction) -> None:
            before = rows.standing(tx.run("standing", event_type=name))
            rows.check_start(decision, before)
            tx.run_many("store", [rows.stored_values(name, *item) for item in decision.stored.items()])
            _add_files(tx, name, decision.files)
            _add_gaps(tx, name, decision.gaps, before.flagged_ms if before else -1)
            counts = msgspec.structs.asdict(decision.counts)
            tx.run("count", event_type=name, read_ms=decision.read_ms, **counts)

        self._tables.change(claim, work)

    def publishing(self, event_type: str) -> list[ArchivedFile]:
        return [ArchivedFile(*row) for row in self._tables.fetch("publishing", event_type=event_type)]

    def published(self, claim: Claim, paths: Sequence[str]) -> None:
        name = claim.event_type
        self._tables.change(claim, lambda tx: tx.run("publish", event_type=name, paths=[*paths]))

    def files(self, event_type: str, hour_ms: int) -> list[ArchivedFile]:
        known = is_plain(event_type)
        found = self._tables.fetch("files", event_type=event_type, hour_ms=hour_ms) if known else []
        return [ArchivedFile(*row) for row in found]


def _add_files(tx: Transaction, event_type: str, files: Sequence[ArchivedFile]) -> None:
    hours_ms = sorted({file.hour_ms for file in files})
    flagged = {found for (found,) in tx.run("flagged_among", event_type=event_type, hours_ms=hours_ms)}
    listed = [found for (found,) in tx.run("listed_among", paths=[file.path for file in files])]
    rows.check_files(files, listed, flagged)
    tx.run_many("add_file", [{"event_type": event_type, **msgspec.structs.asdict(file)} for file in files])
    filled = sorted({file.hour_ms for file in files if file.kind == "data"})
    tx.run_many("fill_hour", [{"event_type": event_type, "hour_ms": hour_ms} for hour_ms in filled])
    _cover(tx, event_type, filled)
    late = sorted({file.hour_ms for file in files if file.kind == "late"})
    tx.run("make_stale", event_type=event_type, hours_ms=late)


def _add_gaps(tx: Transaction, event_type: str, gaps: Sequence[ExpiredRange], flagged_ms: int) -> None:
    first_ms = flagged_ms + HOUR_MS if flagged_ms >= 0 else 0
    cut = [msgspec.structs.replace(gap, from_ms=max(gap.from_ms, first_ms)) for gap in gaps]
    kept = [gap for gap in cut if gap.from_ms <= gap.to_ms]
    if not kept:
        return
    tx.run_many("add_gap", [rows.gap_values(event_type, gap) for gap in kept])
    terms = [Term(*row) for row in tx.run("terms_of", event_type=event_type)]
    hours_ms = {hour_ms for gap in kept for hour_ms in range(gap.from_ms, gap.to_ms + 1, HOUR_MS)}
    lacking = sorted(hour_ms for hour_ms in hours_ms if any(term.covers(hour_ms) for term in terms))
    tx.run_many("fill_hour", [{"event_type": event_type, "hour_ms": hour_ms} for hour_ms in lacking])


def _cover_data(tx: Transaction, event_type: str) -> None:
    """Keep the hours that have data and no flag in the terms of the event type."""
    _cover(tx, event_type, [hour_ms for _, hour_ms, *_ in tx.run("unflagged_data", event_type=event_type)])


def _cover(tx: Transaction, event_type: str, hours_ms: Sequence[int]) -> None:
    """Add the hours to the terms of the event type, so that the flags above wait for them."""
    terms = [Term(*row) for row in tx.run("terms_of", event_type=event_type)]
    spans = readiness.uncovered(terms, hours_ms)
    tx.run_many("cover", [{"event_type": event_type, "from_ms": start, "to_ms": end} for start, end in spans])
