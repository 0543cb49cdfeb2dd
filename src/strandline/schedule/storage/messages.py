"""Operations on messages in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from strandline.engine.database import Tables, Transaction
from strandline.errors import Conflict, Forbidden, Invalid, NotFound, OutcomeUnknown, Unavailable
from strandline.schedule import forecast, rules
from strandline.schedule.dealing import hash_of
from strandline.schedule.model import (
    DEAD,
    ChosenMessage,
    Code,
    ItemAnswer,
    Lease,
    LeaseAct,
    Leased,
    ListQuery,
    LoadCounts,
    NewMessage,
    OwnerAct,
    StoredMessage,
)
from strandline.schedule.rules import Found, Item
from strandline.schedule.storage import rows
from strandline.schedule.storage.port import Messages, uncounted
from strandline.schedule.storage.rows import Given, Row
from strandline.schedule.storage.writes import Change, StoreClock, Writes

_I = TypeVar("_I", bound=Item)
#: An item that is refused, but could be accepted when it is looked at, has met a concurrent change.
ATTEMPTS = 5


class MessageTables:
    """The statements of messages, and the lane of each message."""

    def __init__(self, tables: Tables, writes: Writes, clock: StoreClock, lanes: int) -> None:
        self.tables = tables
        self.writes = writes
        self.clock = clock
        self.lanes = lanes

    def lane(self, message_id: str) -> int:
        return hash_of(message_id) % self.lanes

    def fetch(self, name: str, /, **values: object) -> list[Row]:
        return self.tables.fetch(name, **values, **self.clock.parameters())

    def items(self, given: Sequence[Given]) -> dict[str, object]:
        """The parameters of the part `given`."""
        return {"items": given} if self.lanes == 1 else {**rows.columns(rows.GIVEN, given)}

    def look(self, schedule: str, ids: Sequence[str], tx: Transaction | None = None) -> dict[str, Found]:
        """What is known about each id. NotFound if there is no such schedule."""
        values = self.items([Given(message_id, self.lane(message_id)) for message_id in ids])
        fetch = self.tables.fetch if tx is None else tx.run
        found = fetch("look", schedule=schedule, **values, **self.clock.parameters())
        if not found:
            raise no_schedule(schedule)
        return {row[0]: rows.found(row) for row in found}


def no_schedule(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r:.80}; create it first")


class SqlMessages(Messages):
    def __init__(self, tables: MessageTables) -> None:
        self._tables = tables

    # -- changes

    def create(self, schedule: str, items: Sequence[NewMessage]) -> list[ItemAnswer]:
        name = _live(schedule, "create")

        def store(asked: Sequence[NewMessage]) -> list[Row]:
            new = [rows.new_row(item, self._tables.lanes) for item in asked]
            return self._tables.writes.run(Change("add", name, new, {item.id: item.body for item in asked}))

        def explain(item: NewMessage, found: Found) -> ItemAnswer | None:
            code = rules.refused_create(item, found)
            same = code == "already_exists" and rules.is_repeated_create(item, found)
            version = found.message.version if same and found.message else None
            return rows.refused(item.id, code, version=version) if code else None

        return _answered(self._settle(name, items, store, explain))

    def lease(
        self,
        schedule: str,
        consumer: str,
        lease_ms: int,
        items: Sequence[ChosenMessage],
        counted: Callable[[Leased], None] = uncounted,
    ) -> list[Lease | ItemAnswer]:
        name = _live(schedule, "lease")

        def given(item: ChosenMessage) -> Given:
            return Given(item.id, self._tables.lane(item.id), consumer, item.version, None, lease_ms)

        def refused(item: ChosenMessage, found: Found) -> Code | None:
            return rules.refused_lease(item, lease_ms, found)

        settled = self._settle(name, items, self._storing("lease", name, given), _explained(refused))
        changed = [row for row in settled if not isinstance(row, ItemAnswer)]
        counted(rows.leased(changed))
        return [
            answer
            if isinstance(answer, ItemAnswer)
            else rows.refused(answer[0], "not_available", "the message has reached max_attempts and is dead now")
            if rows.is_dead(answer)
            else rows.lease(answer)
            for answer in settled
        ]

    def extend(self, schedule: str, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._by_holder("extend", _live(schedule, "extend"), items, _explained(rules.refused_extend))

    def release(self, schedule: str, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._by_holder("release", _live(schedule, "release"), items, _explained(rules.refused_release))

    def move(self, schedule: str, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._by_owner("move", _live(schedule, "move"), items, _explained(rules.refused_move))

    def delete(self, schedule: str, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]:
        answers: dict[int, ItemAnswer] = {}
        for numbers in _by_kind(items):
            try:
                found = self._delete(schedule, [items[number] for number in numbers])
            except Unavailable as error:
                if all(answer.status == "error" for answer in answers.values()):
                    raise
                raise _partly_stored(error) from error
            answers |= zip(numbers, found, strict=True)
        return [answers[number] for number in range(len(items))]

    def _delete(self, schedule: str, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]:
        """Items of one kind."""
        name, dead = rules.split_view(schedule)
        held = [item for item in items if isinstance(item, LeaseAct)]
        owned = [item for item in items if isinstance(item, OwnerAct)]

        def refused(item: OwnerAct, found: Found) -> Code | None:
            return rules.refused_to_owner(item, found, dead=dead)

        if owned:
            statement = "delete_dead" if dead else "delete_owned"
            return self._by_owner(statement, name, owned, _explained_delete(refused))
        if dead:  # nobody holds them
            return _answered(self._settle(name, held, lambda _: [], _explained(rules.refused_dead)))
        return self._by_holder("delete_held", name, held, _explained_delete(rules.refused_to_holder))

    def put_back(self, schedule: str, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        name, dead = rules.split_view(schedule)
        if not dead:
            raise Conflict(f"only dead messages can be put back: use {schedule}{DEAD}")

        def refused(item: OwnerAct, found: Found) -> Code | None:
            return rules.refused_to_owner(item, found, dead=True)

        return self._by_owner("put_back", name, items, _explained(refused))

    def _by_holder(
        self, statement: str, schedule: str, items: Sequence[LeaseAct], explain: _Explain[LeaseAct]
    ) -> list[ItemAnswer]:
        def given(item: LeaseAct) -> Given:
            lane, moment = self._tables.lane(item.id), rows.moment_values(item.moment)
            return Given(item.id, lane, item.consumer, item.version, *moment)

        return _answered(self._settle(schedule, items, self._storing(statement, schedule, given), explain))

    def _by_owner(
        self, statement: str, schedule: str, items: Sequence[OwnerAct], explain: _Explain[OwnerAct]
    ) -> list[ItemAnswer]:
        def given(item: OwnerAct) -> Given:
            lane, moment = self._tables.lane(item.id), rows.moment_values(item.moment)
            return Given(item.id, lane, item.producer_group, item.version, *moment)

        return _answered(self._settle(schedule, items, self._storing(statement, schedule, given), explain))

    def _storing(self, statement: str, schedule: str, given: Callable[[_I], Given]) -> _Store[_I]:
        return lambda asked: self._tables.writes.run(Change(statement, schedule, [given(item) for item in asked]))

    def _settle(
        self, schedule: str, items: Sequence[_I], store: _Store[_I], explain: _Explain[_I]
    ) -> list[Row | ItemAnswer]:
        """The changed row of every accepted item, and the answer to every refused one."""
        if not items:
            return []
        answers: dict[int, Row | ItemAnswer] = {}
        for number, item in enumerate(items):
            if problem := rules.malformed(item):
                answers[number] = rows.refused(item.id, "invalid", problem)
        left = [number for number in range(len(items)) if number not in answers]
        stored = False
        for numbers in rows.rounds(left, [item.id for item in items]):
            found: dict[str, Row | ItemAnswer] = {}
            try:
                self._settle_round(schedule, [items[number] for number in numbers], store, explain, found)
            except Unavailable as error:
                if not stored and not _any_stored(found):
                    raise
                raise _partly_stored(error) from error
            answers |= {number: found[items[number].id] for number in numbers}
            stored = stored or _any_stored(found)
        return [answers[number] for number in range(len(items))]

    def _settle_round(
        self,
        schedule: str,
        items: Sequence[_I],
        store: _Store[_I],
        explain: _Explain[_I],
        answers: dict[str, Row | ItemAnswer],
    ) -> None:
        """Add the answers by id; those of items that were stored are known before the next statement."""
        for _ in range(ATTEMPTS):
            answers |= {row[0]: row for row in store([item for item in items if item.id not in answers])}
            if len(answers) == len(items):
                return
            left = [item for item in items if item.id not in answers]
            found = self._tables.look(schedule, [item.id for item in left])
            explained = {item.id: explain(item, found[item.id]) for item in left}
            answers |= {name: answer for name, answer in explained.items() if answer is not None}
            if len(answers) == len(items):
                return
        raise OutcomeUnknown(f"messages of {schedule} change all the time; some items may have been stored")

    # -- reads

    def get(self, schedule: str, message_id: str) -> StoredMessage | None:
        name, dead = rules.split_view(schedule)
        if rules.malformed(ChosenMessage(message_id)):
            return None
        found = self._tables.look(name, [message_id])[message_id]
        return None if found.tombstone or found.dead != dead else found.message

    def read(self, schedule: str, claim: LeaseAct | OwnerAct) -> Lease | None:
        name, dead = rules.split_view(schedule)
        if rules.malformed(ChosenMessage(claim.id)):
            return None
        if problem := rules.malformed(claim):
            raise Invalid(problem)
        found = self._tables.fetch("read", schedule=name, lane=self._tables.lane(claim.id), id=claim.id)
        if not found or found[0][1] != int(dead):
            self._require(name)
            return None
        now_ms, mark, *row = found[0]
        lease = rows.lease((*row[:9], mark, None, None, None, *row[9:]))
        if not _may_read(claim, lease.message, now_ms):
            raise Forbidden(f"only the owner and the holder of an active lease can read the body of {claim.id!r}")
        return lease

    def list(self, schedule: str, query: ListQuery) -> list[StoredMessage]:
        name, dead = rules.split_view(schedule)
        values = {"schedule": name, "after": query.after, "limit": query.limit, "state": query.state or ""}
        if query.producer_group is not None:
            group = query.producer_group
            found = self._tables.fetch("list_owned", producer_group=group, mark=int(dead), **values)
        elif dead:
            found = self._tables.fetch("list_dead", consumer=query.consumer or "", **values)
        elif query.consumer is not None:
            found = self._tables.fetch("list_held", consumer=query.consumer, **values)
        else:
            found = self._tables.fetch("list_live", **values)
        if not found:
            self._require(name)
        return [rows.message(row) for row in found]

    def counts(self, schedule: str, from_ms: int, to_ms: int, step_ms: int | None = None) -> LoadCounts:
        name, dead = rules.split_view(schedule)
        plan = forecast.plan(from_ms, to_ms, step_ms, self._require(name))
        values = {"from_ms": plan.from_ms, "to_ms": plan.to_ms, "step_ms": plan.step_ms, "at_ms": plan.now_ms}
        if dead:
            found = self._tables.tables.fetch("counts_dead", schedule=name, **values)
        else:
            cuts = {"hours": plan.hours, "minutes": plan.minutes}
            found = self._tables.tables.fetch("counts", schedule=name, **values, **cuts)
        return forecast.total(plan, [(bool(held), moment, count) for held, moment, count in found])

    def _require(self, name: str) -> int:
        """The current time. NotFound if there is no such schedule."""
        found = self._tables.fetch("now_of", schedule=name)
        if not found:
            raise no_schedule(name)
        return int(found[0][0])


_Store = Callable[[Sequence[_I]], list[Row]]
_Explain = Callable[[_I, Found], ItemAnswer | None]


def _explained(refused: Callable[[_I, Found], Code | None]) -> _Explain[_I]:
    def explain(item: _I, found: Found) -> ItemAnswer | None:
        code = refused(item, found)
        return rows.refused(item.id, code) if code else None

    return explain


def _explained_delete(refused: Callable[[_I, Found], Code | None]) -> _Explain[_I]:
    explain = _explained(refused)

    def explain_delete(item: _I, found: Found) -> ItemAnswer | None:
        if isinstance(item, LeaseAct | OwnerAct) and rules.is_repeated_delete(item, found):
            version = found.message.version if found.message else None
            return ItemAnswer(item.id, "ok", version=version, code="already_deleted")
        return explain(item, found)

    return explain_delete


def _any_stored(found: Mapping[str, Row | ItemAnswer]) -> bool:
    return not all(isinstance(one, ItemAnswer) for one in found.values())


def _partly_stored(error: Unavailable) -> OutcomeUnknown:
    return OutcomeUnknown(f"only a part of the batch was stored: {error}")


def _by_kind(items: Sequence[LeaseAct | OwnerAct]) -> list[list[int]]:
    """The numbers of the acts in parts of one kind; in the order given if both kinds name the same message."""
    kinds = [type(item) for item in items]
    ids = [{item.id for item in items if isinstance(item, kind)} for kind in (LeaseAct, OwnerAct)]
    if ids[0].isdisjoint(ids[1]):
        return [[n for n, one in enumerate(kinds) if one is kind] for kind in dict.fromkeys(kinds)]
    return [[*numbers] for _, numbers in groupby(range(len(items)), key=kinds.__getitem__)]


def _answered(settled: Sequence[Row | ItemAnswer]) -> list[ItemAnswer]:
    return [one if isinstance(one, ItemAnswer) else rows.accepted(one) for one in settled]


def _may_read(claim: LeaseAct | OwnerAct, message: StoredMessage, now_ms: int) -> bool:
    if isinstance(claim, OwnerAct):
        return message.producer_group == claim.producer_group
    active = message.at_ms > now_ms and message.consumer == claim.consumer
    return active and message.version == claim.version


def _live(schedule: str, what: str) -> str:
    """Conflict if the view of dead messages is meant."""
    name, dead = rules.split_view(schedule)
    if dead:
        raise _refused_view(what)
    return name


def _refused_view(what: str) -> Conflict:
    return Conflict(f"{what} is not possible with dead messages; put them back first")
