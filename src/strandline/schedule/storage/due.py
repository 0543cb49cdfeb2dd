"""Due messages and sessions in a SQL database, for the node that delivers them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from strandline import failpoints
from strandline.schedule import rules
from strandline.schedule.dealing import assign
from strandline.schedule.model import (
    ClockOffset,
    DueMessage,
    Lease,
    LeaseAct,
    Leased,
    NextDue,
    StoredMessage,
    Taker,
)
from strandline.schedule.storage import rows
from strandline.schedule.storage.messages import ATTEMPTS, MessageTables, no_schedule
from strandline.schedule.storage.port import DueMessages, Sessions, always
from strandline.schedule.storage.rows import Given
from strandline.schedule.storage.writes import Change

# At most this many leases of a consumer are compared with the known ones at a time.
_PAGE = 500


class SqlDueMessages(DueMessages):
    def __init__(self, tables: MessageTables) -> None:
        self._tables = tables

    def lease(
        self,
        schedule: str,
        takers: Sequence[Taker],
        max_bytes: int,
        may: Callable[[int], bool] = always,
        *,
        beyond: int = 0,
    ) -> Leased:
        ranges = [(taker.first, taker.last) for taker in takers if taker.credit > 0]
        if not ranges:
            return Leased(0, [])
        shown = {"ranges": ranges} if self._tables.lanes == 1 else rows.columns(("firsts", "lasts"), ranges)
        credit = sum(taker.credit for taker in takers)
        found = self._tables.fetch("due", schedule=schedule, credit=credit, beyond=beyond, **shown)
        if not found:
            return Leased(0, [])
        now_ms, longest_ms = found[0][:2]
        if not may(now_ms):
            return Leased(now_ms, [])
        failpoints.hit("schedule.due")
        chosen = assign([DueMessage(*row[2:]) for row in found], takers, now_ms, max_bytes)
        chosen.sort(key=lambda pair: (pair[0].at_ms, pair[0].id))
        items = [self._given(message, taker, longest_ms) for message, taker in chosen]
        leased = self._leased("lease", schedule, items, now_ms)
        since = {message.id: message.at_ms for message, _ in chosen}
        waited = [now_ms - since[lease.message.id] for lease in leased.leases]
        return msgspec.structs.replace(leased, waited_ms=waited)

    def _given(self, message: DueMessage, taker: Taker, longest_ms: int) -> Given:
        lane, lease_ms = self._tables.lane(message.id), min(taker.lease_ms, longest_ms)
        return Given(message.id, lane, taker.consumer, message.version, None, lease_ms, taker.epoch)

    def hand_back(
        self, schedule: str, consumer: str, epoch: int, credit: int, known: Collection[str] = ()
    ) -> Leased:
        leases: list[Lease] = []
        after, more = "", True
        while more and len(leases) < credit:
            values = {"consumer": consumer, "after": after, "limit": _PAGE, "state": "processing"}
            page = [rows.message(row) for row in self._tables.fetch("list_held", schedule=schedule, **values)]
            others = [one for one in page if one.id not in known]
            asked = others[: credit - len(leases)]
            leased = self._hand_back(schedule, asked, epoch)
            leases += leased.leases
            if leased.fenced:
                return Leased(0, leases, leased.fenced)
            more = len(page) == _PAGE or len(asked) < len(others)
            after = (asked or page)[-1].id if more else ""
        return Leased(0, leases)

    def _hand_back(self, schedule: str, asked: Sequence[StoredMessage], epoch: int) -> Leased:
        """Also those that an earlier session of the holder has extended since they were read."""
        leases: list[Lease] = []
        for _ in range(ATTEMPTS):
            leased = self._leased("hand_back", schedule, [self._held(one, epoch) for one in asked], 0)
            leases += leased.leases
            done = {lease.message.id for lease in leased.leases}
            missed = {one.id: one.version for one in asked if one.id not in done}
            if leased.fenced or not missed:
                return Leased(0, leases, leased.fenced)
            acts = [LeaseAct(one.id, one.consumer or "", one.version) for one in asked if one.id in missed]
            asked = [one for one in self.still_held(schedule, acts) if one.version != missed[one.id]]
        return Leased(0, leases)

    def _held(self, message: StoredMessage, epoch: int) -> Given:
        lane = self._tables.lane(message.id)
        return Given(message.id, lane, message.consumer, message.version, None, None, epoch)

    def _leased(self, statement: str, schedule: str, items: Sequence[Given], now_ms: int) -> Leased:
        changed = []
        for numbers in rows.rounds(range(len(items)), [item.id for item in items]):
            given = [items[number] for number in numbers]
            changed += self._tables.writes.run(Change(statement, schedule, given))
        leases = [rows.lease(row) for row in changed if not rows.is_dead(row)]
        fenced = frozenset[str]()
        if len(changed) < len(items):
            fenced = self._fenced(schedule, {one.actor: one.epoch for one in items if one.actor and one.epoch})
        order = {item.id: number for number, item in enumerate(items)}
        leases.sort(key=lambda lease: order[lease.message.id])
        expired = sum(rows.was_held(row) for row in changed if not rows.is_dead(row))
        return Leased(now_ms, leases, fenced, len(changed) - len(leases), expired)

    def _fenced(self, schedule: str, epochs: Mapping[str, int]) -> frozenset[str]:
        if not epochs:
            return frozenset()
        found: dict[str, int] = dict(self._tables.tables.fetch("epochs", schedule=schedule, consumers=[*epochs]))
        return frozenset(consumer for consumer, epoch in epochs.items() if found.get(consumer) != epoch)

    def give_back(self, schedule: str, items: Sequence[LeaseAct]) -> None:
        given = [Given(item.id, self._tables.lane(item.id), item.consumer, item.version) for item in items]
        for numbers in rows.rounds(range(len(items)), [item.id for item in items]):
            self._tables.writes.run(Change("give_back", schedule, [given[number] for number in numbers]))

    def still_held(self, schedule: str, items: Sequence[LeaseAct]) -> list[StoredMessage]:
        held = []
        for numbers in rows.rounds(range(len(items)), [item.id for item in items]):
            found = self._tables.look(schedule, [items[number].id for number in numbers])
            for item in [items[number] for number in numbers]:
                message = found[item.id].message
                if message and rules.refused_to_holder(item, found[item.id]) in {None, "stale_version"}:
                    held.append(message)
        return held

    def next_due(self, schedule: str) -> NextDue:
        (found,) = self._tables.fetch("next_due", schedule=schedule)
        return NextDue(*found)


class SqlSessions(Sessions):
    def __init__(self, tables: MessageTables) -> None:
        self._tables = tables

    def beat(self, node: str, lives_ms: int, clock: ClockOffset) -> None:
        measured = {
            "clock_offset": clock.offset_ms,
            "clock_error": clock.error_ms,
            "measured_ms": clock.measured_ms,
        }
        self._change("beat", node=node, lives_ms=lives_ms, **measured)

    def nodes(self) -> list[ClockOffset]:
        return [ClockOffset(*row) for row in self._tables.fetch("nodes")]

    def leave(self, node: str) -> None:
        self._tables.tables.store("leave", node=node)

    def open(self, schedule: str, consumer: str, node: str) -> int:
        found = self._change("open_session", schedule=schedule, consumer=consumer, node=node)
        if not found:
            raise no_schedule(schedule)
        return int(found[0][0])

    def close(self, schedule: str, consumer: str, epoch: int) -> None:
        self._tables.tables.store("close_session", schedule=schedule, consumer=consumer, epoch=epoch)

    def attend(self, schedule: str, consumer: str, lives_ms: int) -> None:
        if not self._change("attend", schedule=schedule, consumer=consumer, lives_ms=lives_ms):
            raise no_schedule(schedule)

    def present(self, schedule: str) -> dict[str, int]:
        return dict(self._tables.fetch("present", schedule=schedule))

    def _change(self, name: str, /, **values: object) -> list[rows.Row]:
        return self._tables.tables.store(name, **values, **self._tables.clock.parameters())
