"""The state of relays in a SQL database, in the same transactions as the messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from strandline import failpoints
from strandline.engine.database import LeaseClock, Rows, Tables, Transaction
from strandline.engine.process_leases import ProcessLeases
from strandline.errors import Conflict, Fenced, NotFound
from strandline.log import cursors
from strandline.log.cursors import Position
from strandline.schedule import rules
from strandline.schedule.model import Body, Moment, NewMessage, Schedule
from strandline.schedule.relay.rules import in_order, letter
from strandline.schedule.relay.values import OpenRecord, RelayLetter, RelayMessage, RelayRoute, TargetMark
from strandline.schedule.storage import rows
from strandline.schedule.storage.messages import MessageTables, no_schedule
from strandline.schedule.storage.port import RelayBook
from strandline.schedule.storage.rows import Given
from strandline.schedule.storage.writes import Change

_T = TypeVar("_T")

#: The owner of all messages of relays, and the consumer that holds their leases.
ACTOR = "relay"
_MOST_IN_STATEMENT = 500
_LEASES = "strandline relays"

_ids = msgspec.json.Decoder(list[str]).decode
_ends = msgspec.json.Decoder(dict[int, str]).decode


class SqlRelays(RelayBook):
    def __init__(self, shared: MessageTables) -> None:
        self._shared = shared
        self._tables = Tables(shared.tables.database, "relays", "strandline.schedule.storage", "relays.sql")

    def begin(self, route: RelayRoute) -> None:
        def work(tx: Transaction) -> Rows:
            tx.run("forget")
            tx.run("begin", **msgspec.structs.asdict(route))
            return tx.run("relay", schedule=route.schedule)

        name = route.schedule
        _refuse_attempts(self._shared.look(name, ["-"])["-"].schedule)
        found = self._tables.transaction(work)
        if not found:
            raise no_schedule(name)
        source, source_id, target = found[0]
        if (source, target) != (route.source, route.target):
            raise Conflict(f"the schedule {name} has a relay from {source!r} to {target!r}; use another schedule")
        if source_id != route.source_id:
            raise Conflict(
                f"event type {source!r} was deleted and created again since the relay of {name} began; "
                "use another schedule"
            )

    def check_settings(self, schedule: Schedule) -> None:
        if self._tables.fetch("relay", schedule=schedule.name):
            _refuse_attempts(schedule)

    def take_over(self, schedule: str) -> int:
        found = self._tables.store("take_over", schedule=schedule)
        if not found:
            raise _no_relay(schedule)
        return int(found[0][0])

    # -- filling

    def positions(self, schedule: str) -> dict[int, Position]:
        found = self._tables.fetch("positions", schedule=schedule)
        return {partition: cursors.stored(text) for partition, text in found}

    def fill(
        self,
        route: RelayRoute,
        partition: int,
        after: Position | None,
        until: Position,
        messages: Sequence[RelayMessage],
        dead: Sequence[RelayLetter],
    ) -> int:
        def work(tx: Transaction) -> int:
            own = self._tables.within(tx)
            self._move(own, route, partition, after, until)
            refused = self._create(tx, route.schedule, messages)
            _keep(own, route.schedule, [*dead, *refused])
            failpoints.hit("relay.filling")
            return len(dead) + len(refused)

        return self._shared.tables.transaction(work)

    def _move(
        self, own: Transaction, route: RelayRoute, partition: int, after: Position | None, until: Position
    ) -> None:
        values = {"schedule": route.schedule, "source_id": route.source_id, "partition": partition}
        if after is None:
            moved = own.run("begin_position", cursor=str(until), **values)
        else:
            moved = own.run("move_position", cursor=str(until), after=str(after), **values)
        if not moved:
            raise Conflict(f"partition {partition} of {route.source!r} is not filled up to {after} any more")

    def _create(self, tx: Transaction, schedule: str, messages: Sequence[RelayMessage]) -> list[RelayLetter]:
        """Create messages; returns those that the schedule refuses."""
        refused = []
        for part in _parts(messages):
            items = [_new(message) for message in part]
            change = Change(
                "add",
                schedule,
                [rows.new_row(item, self._shared.lanes) for item in items],
                {item.id: item.body for item in items},
            )
            created = {row[0] for row in self._shared.writes.apply(tx, change)}
            left = [message for message in part if message.id not in created]
            refused += self._refused(tx, schedule, left) if left else []
        return refused

    def _refused(self, tx: Transaction, schedule: str, messages: Sequence[RelayMessage]) -> list[RelayLetter]:
        found = self._shared.look(schedule, [message.id for message in messages], tx)
        codes = {message.id: rules.refused_create(_new(message), found[message.id]) for message in messages}
        return [
            letter(message, f"the schedule {schedule} refuses the message: {code}")
            for message in messages
            if (code := codes[message.id]) not in {None, "already_exists"}
        ]

    # -- emptying

    def lease(
        self, schedule: str, epoch: int, mark: TargetMark, *, limit: int, max_bytes: int, lease_ms: int
    ) -> OpenRecord | None:
        def work(tx: Transaction) -> OpenRecord | None:
            own = self._tables.within(tx)
            number = _held(own.run("next_round", schedule=schedule, epoch=epoch), schedule)
            found = tx.run("due_in_order", schedule=schedule, limit=limit, **self._shared.clock.parameters())
            if not found:
                return None
            given = self._given(found, max_bytes, lease_ms)
            leased = [row for part in _parts(given) for row in self._apply(tx, "lease", schedule, part)]
            if not leased:  # other consumers were faster
                return None
            record = OpenRecord(number, mark, in_order(map(_message, leased)))
            ends = msgspec.json.encode({partition: str(end) for partition, end in mark.ends.items()}).decode()
            ids = msgspec.json.encode([message.id for message in record.messages]).decode()
            values = {"round": number, "target_id": mark.target_id, "ends": ends, "ids": ids}
            if not own.run("open_record", schedule=schedule, **values):
                raise Conflict(f"the relay of {schedule} has an open record")
            failpoints.hit("relay.leasing")
            return record

        return self._shared.tables.transaction(work)

    def _given(self, found: Rows, max_bytes: int, lease_ms: int) -> list[Given]:
        """The messages to lease: as many as have at most `max_bytes` together, but one at least."""
        given: list[Given] = []
        for _, longest_ms, name, version, body_bytes in found:
            max_bytes -= body_bytes
            if given and max_bytes < 0:
                break
            lane = self._shared.lane(name)
            given.append(Given(name, lane, ACTOR, version, None, min(lease_ms, longest_ms)))
        return given

    def _apply(self, tx: Transaction, statement: str, schedule: str, given: Sequence[Given]) -> Rows:
        return self._shared.writes.apply(tx, Change(statement, schedule, given))

    def record(self, schedule: str) -> OpenRecord | None:
        found = self._tables.fetch("record", schedule=schedule)
        if not found:
            return None
        number, target_id, ends, ids = found[0]
        mark = TargetMark(target_id, {partition: cursors.stored(text) for partition, text in _ends(ends).items()})
        contents: Rows = []
        for part in _parts(_ids(ids)):
            given = [Given(name, self._shared.lane(name)) for name in part]
            contents += self._shared.tables.fetch("contents", schedule=schedule, **self._shared.items(given))
        return OpenRecord(number, mark, in_order(map(_message, contents)))

    def close(self, schedule: str, epoch: int, record: OpenRecord, dead: Sequence[RelayLetter]) -> None:
        def work(tx: Transaction) -> None:
            own = self._tables.within(tx)
            _held(own.run("hold", schedule=schedule, epoch=epoch), schedule)
            closed = own.run("close_record", schedule=schedule, round=record.round)
            for part in _parts([name for (ids,) in closed for name in _ids(ids)]):
                given = [Given(name, self._shared.lane(name), ACTOR) for name in part]
                self._apply(tx, "delete_relayed", schedule, given)
            _keep(own, schedule, dead)
            failpoints.hit("relay.closing")

        self._shared.tables.transaction(work)

    def dead_letters(self, schedule: str, limit: int, after: str = "") -> list[RelayLetter]:
        found = self._tables.fetch("dead_letters", schedule=schedule, limit=limit, after=after)
        return [
            RelayLetter(name, partition, cursors.stored(text), reason, None if value is None else bytes(value))
            for name, partition, text, reason, value in found
        ]

    def processes(self, lease_ms: int) -> ProcessLeases:
        return ProcessLeases(self._tables, LeaseClock(self._tables.database), lease_ms, _LEASES)


def _parts(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Parts for one statement each."""
    for start in range(0, len(items), _MOST_IN_STATEMENT):
        yield items[start : start + _MOST_IN_STATEMENT]


def _new(message: RelayMessage) -> NewMessage:
    return NewMessage(message.id, ACTOR, Body(message.value, is_json=True), Moment(message.due_ms))


def _message(row: rows.Row) -> RelayMessage:
    lease = rows.lease(row)
    return RelayMessage(lease.message.id, lease.message.due_ms, lease.body.content)


def _refuse_attempts(schedule: Schedule) -> None:
    if schedule.max_attempts is not None:
        raise Conflict(
            f"the schedule {schedule.name} has max_attempts; a relay must not lose events: leave it out"
        )


def _keep(own: Transaction, schedule: str, dead: Sequence[RelayLetter]) -> None:
    own.run_many(
        "add_dead_letter",
        [
            {
                "schedule": schedule,
                "id": one.id,
                "partition": one.partition,
                "cursor": str(one.cursor),
                "reason": one.reason.replace("\0", "\ufffd"),
                "value": one.value,
            }
            for one in dead
        ],
    )


def _held(found: Rows, schedule: str) -> int:
    if not found:
        raise Fenced(f"another process has taken over the relay of {schedule}")
    return int(found[0][0])


def _no_relay(schedule: str) -> NotFound:
    return NotFound(f"the schedule {schedule!r:.80} has no relay")
