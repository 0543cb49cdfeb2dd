"""One publish from its gate to the storage, also during timeline switches.

`switching` has the rules. A storage that can seal refuses late appends. For a storage that cannot, the state of
the switch is read after its answer. In both cases an event is acknowledged only where readers find it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from strandline.clock import Clock
from strandline.errors import NotFound, OutcomeUnknown, Sealed, StrandlineError
from strandline.log import preparation
from strandline.log.catalog import Catalog
from strandline.log.combining import QueuedJob
from strandline.log.event_types import EventTypes, refuse_actions
from strandline.log.gate import Waiting
from strandline.log.model import CatalogEntry, PublishReport, Timeline
from strandline.log.node import Node
from strandline.log.open_storages import Storages, fencing, unseal
from strandline.log.preparation import Prepared
from strandline.log.storage import UNKNOWN, Placed, SealableStorage
from strandline.log.switching import PublisherAction, State, after_append, on_sealed

log = logging.getLogger(__name__)

#: By partition, the numbers of records within the publish's batch.
Members = Mapping[int, Sequence[int]]
Outcome = PublishReport | BaseException
#: Gets the outcome of a publish. Called once, in any thread.
Done = Callable[[Outcome], None]

#: The id of an event type, and records that were prepared for it.
PreparedFor = tuple[str, Prepared]

_NOTHING = "", Prepared((), {}, {})


@dataclass(frozen=True)
class PublishContext:
    """What all publishes of a process share."""

    node: Node
    catalog: Catalog
    storages: Storages
    event_types: EventTypes
    clock: Clock

    def prepare(
        self, name: str, items: Sequence[bytes], flow_id: str | None
    ) -> tuple[CatalogEntry, Prepared | PublishReport]:
        """The event type, and its records or the report if there is nothing to store."""
        compiled = self.event_types.compiled(name)
        entry = compiled.entry
        refuse_actions(entry)
        # Only the metadata of the other categories has a flow id.
        made = "" if entry.event_type.category == "undefined" else uuid.uuid4().hex
        prepared = preparation.prepare(compiled, items, self.clock.now_ms(), flow_id or made)
        return entry, prepared if items else PublishReport(0)


class PublishAttempt:
    """One publish from its gate to its outcome.

    `done` is called with the outcome, in any thread, and must not raise. Without it, the thread that made the
    attempt calls `wait` and then `hand_over`. It does the append itself, usually without another thread.
    With `done` and `helps`, that thread calls `help`, which does the append as well but waits for nothing.

    `prepared` are the records, if the publish was prepared before.
    """

    def __init__(
        self,
        context: PublishContext,
        name: str,
        items: Sequence[bytes],
        flow_id: str | None,
        done: Done | None = None,
        *,
        helps: bool = False,
        prepared: PreparedFor | None = None,
    ) -> None:
        self.items = items
        self._context = context
        self._name = name
        self._flow_id = flow_id
        self._done = done
        self._gate = context.node.gate(name)
        self._entry_id, self._prepared = prepared or _NOTHING
        self._taken = False
        # Where each record is and the error of each partition; used only if some records had to move.
        self._offsets: dict[int, list[int]] = {}
        self._orders: dict[int, list[int]] = {}
        self._errors: dict[int, StrandlineError] = {}
        self._waiting_thread = threading.get_ident() if done is None or helps else None
        # The append that the waiting thread has to finish, its timeline and its records.
        self._unfinished: tuple[Future[dict[int, Placed]], Timeline, Members | None] | None = None
        self._outcome: Outcome | None = None
        self._settled = threading.Lock()  # an event or a future costs ten times as much
        self._settled.acquire()

    def enter(self, wait_ms: int) -> None:
        """Start when the gate is open. If that takes longer than `wait_ms`, the outcome is Unavailable."""
        if self._gate.pass_if_open():
            self._start()
        else:
            self._gate.enter(Waiting(self._start, self._settle, self._context.clock.steady_ms() + wait_ms))

    def wait(self, deadline: float) -> PublishReport:
        """The report; TimeoutError if it takes too long."""
        # In a loop: an append that meets a seal is followed by another append.
        while self._outcome is None and self._unfinished is not None:
            future, timeline, members = self._unfinished
            try:  # noqa: SIM105 - `suppress` is slower, and this is done for every single event
                future.result(max(deadline - time.monotonic(), 0))
            except StrandlineError:
                pass
            self._guarded(self._answered, timeline, members, future)
        if self._outcome is None and not self._settled.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise TimeoutError
        if isinstance(self._outcome, PublishReport):
            return self._outcome
        raise cast("BaseException", self._outcome)

    def help(self) -> None:
        """Do the append in this thread, unless another thread does it or the publish waits for a switch."""
        # In a loop: an append that meets a seal is followed by another append.
        while self._unfinished is not None:
            future, timeline, members = self._unfinished
            if isinstance(future, QueuedJob):
                future.help()
            if not future.done():
                break
            self._guarded(self._answered, timeline, members, future)
        self.hand_over()

    def hand_over(self) -> None:
        """Let other threads do what is left."""
        self._waiting_thread = None
        if self._outcome is None and self._unfinished is not None:
            self._follow(*self._unfinished)

    def unknown(self) -> Outcome:
        """The outcome if the storage does not answer in time."""
        return self._prepared.unknown() if self._entry_id else preparation.unanswered_report(self.items)

    # -- steps

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001 - it is the outcome
            self._fail(error)

    def _start(self) -> None:
        try:
            self._store()
        except BaseException as error:  # noqa: BLE001 - it is the outcome
            self._fail(error)

    def _store(self) -> None:
        if self._entry_id:
            self._append(self._entry().active, None)
            return
        entry, prepared = self._context.prepare(self._name, self.items, self._flow_id)
        if isinstance(prepared, PublishReport):
            self._finish(prepared)
        else:
            self._entry_id, self._prepared = entry.id, prepared
            self._append(entry.active, None)

    def _append(self, timeline: Timeline, members: Members | None) -> None:
        """Store the records with these numbers, or all records, in this timeline."""
        batches = self._prepared.batches
        if members is not None:
            batches = {p: batches[p].pick(numbers) for p, numbers in members.items()}
        storage = self._context.storages.get(timeline.storage_id)
        waits = threading.get_ident() == self._waiting_thread
        if self._prepared.fence is not None:
            future = fencing(storage).append_fenced(timeline.topic, batches, self._prepared.fence)
        else:
            future = storage.append(timeline.topic, batches, waits=waits)
        if waits:
            self._unfinished = future, timeline, members
        else:
            self._follow(future, timeline, members)

    def _follow(self, future: Future[dict[int, Placed]], timeline: Timeline, members: Members | None) -> None:
        future.add_done_callback(partial(self._guarded, self._answered, timeline, members))

    def _answered(self, timeline: Timeline, members: Members | None, future: Future[dict[int, Placed]]) -> None:
        self._unfinished = None
        try:
            placed = future.result()
        except Sealed as error:
            self._sealed(timeline, members, error.token)
        except NotFound:
            active = self._entry().active
            if active.order == timeline.order:
                raise
            # Nothing is stored: the timeline was closed and removed before the append, and its topic deleted.
            self._append(active, members)
        else:
            self._stored(timeline, members, placed)

    def _sealed(self, timeline: Timeline, members: Members | None, token: str) -> None:
        """The topic was sealed and nothing is stored: act on the state of the switch that sealed it."""
        switch = self._context.catalog.switches.get(token)
        if switch is None:
            raise NotFound(f"event type {self._name!r} does not exist")
        action = on_sealed(switch.state)
        if action is PublisherAction.WAIT:
            self._park(self._sealed, timeline, members, token)
        elif action is PublisherAction.UNSEAL:
            unseal(self._context.storages, timeline, token)
            self._append(timeline, members)
        else:
            self._append(self._entry().active, members)

    def _stored(self, timeline: Timeline, members: Members | None, placed: Mapping[int, Placed]) -> None:
        """The storage has the records. If it cannot seal, the current state decides which of them readers see."""
        late: Members = {}
        if not isinstance(self._context.storages.get(timeline.storage_id), SealableStorage):
            self._taken = True
            entry = self._entry()
            now = next(t for t in entry.timelines if t.order == timeline.order)
            state = _state(entry, now)
            if state is State.CLOSING:
                self._park(self._stored, timeline, members, placed)
                return
            late = _late(members, placed, state, now.latest_position)
        if not late and not self._offsets:
            self._finish(self._prepared.outcome(placed, timeline.order))
            return
        self._note(timeline, members, placed)
        if late:
            self._append(entry.active, late)
        else:
            whole = {p: Placed(offsets, self._errors.get(p)) for p, offsets in self._offsets.items()}
            self._finish(self._prepared.outcome(whole, self._orders))

    def _note(self, timeline: Timeline, members: Members | None, placed: Mapping[int, Placed]) -> None:
        """Keep where these records are, because the publish is spread over several timelines."""
        if not self._offsets:
            self._offsets = {p: [UNKNOWN] * len(batch) for p, batch in self._prepared.batches.items()}
            self._orders = {p: [timeline.order] * len(batch) for p, batch in self._prepared.batches.items()}
        for partition, part in placed.items():
            for number, offset in zip(_numbers(members, partition, part), part.offsets, strict=True):
                self._offsets[partition][number] = offset
                self._orders[partition][number] = timeline.order
            if part.error is not None:
                self._errors[partition] = part.error

    def _entry(self) -> CatalogEntry:
        """The event type that this publish was prepared for; NotFound if it was deleted."""
        entry = self._context.event_types.entry(self._name)
        if entry.id != self._entry_id:
            raise NotFound(f"event type {self._name!r} was deleted and created again")
        return entry

    def _park(self, resume: Callable[..., None], *arguments: Any) -> None:
        """Wait until the switch is decided; later publishes wait behind this one."""
        self._gate.park(partial(self._guarded, resume, *arguments))
        self._context.node.wake()

    def _finish(self, outcome: Outcome) -> None:
        self._gate.leave()
        self._settle(outcome)

    def _fail(self, error: BaseException) -> None:
        self._gate.leave()
        if not isinstance(error, StrandlineError):
            log.error("a publish failed", exc_info=error)
        # Records that the storage accepted must not be reported as failed because of a later error.
        if isinstance(error, OutcomeUnknown) or (self._taken and not isinstance(error, NotFound)):
            log.warning("the outcome of a publish is unknown: %s", error)
            self._settle(self._prepared.unknown())
            return
        self._settle(error)

    def _settle(self, outcome: Outcome) -> None:
        if self._done is not None:
            self._done(outcome)
        elif self._outcome is None:  # an interrupt after the outcome does not change it
            self._outcome = outcome
            self._settled.release()


def _numbers(members: Members | None, partition: int, placed: Placed) -> Sequence[int]:
    return range(len(placed.offsets)) if members is None else members[partition]


def _late(
    members: Members | None, placed: Mapping[int, Placed], state: State | None, ends: Mapping[str, int] | None
) -> dict[int, list[int]]:
    """The numbers of the records that were stored past the end of their timeline."""
    late: dict[int, list[int]] = {}
    if state is not State.DONE:  # the timeline has no end yet
        return late
    for partition, part in placed.items():
        last = (ends or {}).get(str(partition), -1)
        for number, offset in zip(_numbers(members, partition, part), part.offsets, strict=True):
            if after_append(state, offset, last) is PublisherAction.MOVE:
                late.setdefault(partition, []).append(number)
    return late


def _state(entry: CatalogEntry, timeline: Timeline) -> State | None:
    """The state of the switch that closes this timeline, if there is one."""
    if timeline.latest_position is not None:
        return State.DONE
    switch = entry.switch
    # A decided switch has closed an older timeline, or was aborted.
    return switch.state if switch is not None and switch.kind == "switch" and not switch.state.final else None
