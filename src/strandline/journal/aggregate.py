"""Entities whose state is made from their journals: load, decide, save, and again if another writer was first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

from strandline.errors import Conflict, Invalid, NotFound, Unavailable
from strandline.journal import rules
from strandline.journal.model import NewEvent, Payload, Pointer
from strandline.journal.room import Journal
from strandline.log.event_json import decode_event, exact_float

_State = TypeVar("_State")
# How often `load` starts again if the journal is purged and created again while it is read.
_LIVES = 10


@dataclass(frozen=True)
class Aggregate(Generic[_State]):
    """The state of an entity after the event `seq_nr`, 0 if it has none. `since` is the life of its journal."""

    id: str
    state: _State
    seq_nr: int = 0
    since: str | None = None


class Aggregates(Generic[_State]):
    """The entities of a topic. Thread-safe if the functions are.

    `apply` gets a state and the payload of an event, and returns the next state: JSON as a value, text as `str`,
    bytes as they are. A JSON number beyond the range of a `float`, or with more digits than Python reads as an
    `int`, is a `Decimal`; Invalid if it is too large for that, too. With `snapshot_every`, the state is saved
    after every so many events, encoded with `freeze`, and decoded with `thaw` when it is loaded; by default both
    expect a state that is plain JSON.
    """

    def __init__(
        self,
        journal: Journal,
        initial: _State,
        apply: Callable[[_State, Any], _State],
        *,
        snapshot_every: int | None = None,
        freeze: Callable[[_State], Any] = lambda state: state,
        thaw: Callable[[Any], _State] = lambda value: value,
    ) -> None:
        self._journal = journal
        self._initial = initial
        self._apply = apply
        self._every = snapshot_every
        self._freeze = freeze
        self._thaw = thaw

    def load(self, entity: str) -> Aggregate[_State]:
        """The state of an entity now: its newest snapshot and the events after it.

        Conflict if events that the state needs were deleted and no snapshot has them.
        """
        pointer = self._journal.pointer(entity)
        for _ in range(_LIVES):
            if pointer.seq_nr is None:
                return Aggregate(entity, self._initial)
            found = self._read(entity, pointer.seq_nr, pointer)
            before, pointer = pointer, self._journal.pointer(entity)
            if found is not None and pointer.since == before.since:
                return found
        raise Unavailable(f"the journal {entity!r:.80} changes while it is loaded; try again", retry_after=1)

    def _read(self, entity: str, last: int, pointer: Pointer) -> Aggregate[_State] | None:
        """The state at a pointer; None if the journal has changed so that it cannot be made."""
        snapshot = self._journal.snapshot(entity, last) if self._every is not None else None
        state, seq_nr = self._initial, 0
        if snapshot is not None:
            frozen = _value(snapshot.payload, f"the snapshot of {entity!r:.80}")
            state, seq_nr = self._thaw(frozen), snapshot.seq_nr
        if (pointer.delete_to or 0) > seq_nr:
            raise Conflict(
                f"events of {entity!r:.80} up to {pointer.delete_to} are deleted, and no snapshot has their state",
                seq_nr=last,
            )
        for event in self._journal.read(entity, seq_nr + 1, last) if seq_nr < last else ():
            value = _value(event.payload, f"event {event.seq_nr} of {entity!r:.80}")
            state, seq_nr = self._apply(state, value), event.seq_nr
        return Aggregate(entity, state, last, pointer.since) if seq_nr == last else None

    def save(self, loaded: Aggregate[_State], events: Sequence[NewEvent | Any]) -> Aggregate[_State]:
        """Append events to the journal as it was loaded. Conflict if it has changed since; then load it again."""
        if not events:
            return loaded
        new = [rules.event(event) for event in events]
        values = [_value(event.payload, f"a new event of {loaded.id!r:.80}") for event in new]
        stored = self._journal.append(loaded.id, new, expected=loaded.seq_nr, since=loaded.since)
        state = loaded.state
        for value in values:
            state = self._apply(state, value)
        saved = Aggregate(loaded.id, state, stored.seq_nr, loaded.since or stored.cursor)
        if self._every is not None and saved.seq_nr // self._every > loaded.seq_nr // self._every:
            self._save_snapshot(saved)
        return saved

    def _save_snapshot(self, saved: Aggregate[_State]) -> None:
        payload = rules.payload(self._freeze(saved.state))
        with suppress(NotFound, Conflict):  # the journal was purged meanwhile
            self._journal.save_snapshot(saved.id, saved.seq_nr, payload, since=saved.since)

    def update(
        self, entity: str, decide: Callable[[_State], Sequence[NewEvent | Any]], *, attempts: int = 20
    ) -> Aggregate[_State]:
        """Load an entity, append the events that `decide` returns for its state, and return the new state.

        If another writer was first, this starts again, at most `attempts` times; then Conflict.
        """
        for left in range(attempts - 1, -1, -1):
            loaded = self.load(entity)
            try:
                return self.save(loaded, decide(loaded.state))
            except Conflict:
                if not left:
                    raise
        raise Conflict("no attempt was allowed")


def _value(payload: Payload | None, what: str) -> Any:
    if payload is None:
        return None
    if payload.kind == "json":
        return _json_value(payload.data, what)
    return payload.data.decode() if payload.kind == "text" else payload.data


def _json_value(text: bytes, what: str) -> Any:
    with suppress(Invalid):
        return decode_event(text)
    try:
        return json.loads(text, parse_int=_integer, parse_float=exact_float)
    except ArithmeticError:
        raise Invalid(
            f"{what} has a number that Python cannot hold; read the journal, which gives its bytes"
        ) from None


def _integer(text: str) -> int | Decimal:
    try:
        return int(text)
    except ValueError:  # more digits than Python converts
        return Decimal(text)
