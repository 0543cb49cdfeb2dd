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
from contextlib import suppress
from dataclasses import dataclass

from strandline.clock import Clock
from strandline.errors import NotFound, OutcomeUnknown, Sealed, StrandlineError
from strandline.log import preparation
from strandline.log.catalog import Catalog
from strandline.log.event_types import EventTypes
from strandline.log.model import CatalogEntry, PublishReport, Timeline
from strandline.log.node import Node
from strandline.log.open_storages import Storages, unseal
from strandline.log.preparation import Prepared
from strandline.log.storage import UNKNOWN, Placed, SealableStorage
from strandline.log.switching import PublisherAction, State, after_append, on_sealed

log = logging.getLogger(__name__)

#: By partition, the numbers of records within the publish's batch.
Members = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class PublishContext:
    """What all publishes of a process share."""

    node: Node
    catalog: Catalog
    storages: Storages
    event_types: EventTypes
    clock: Clock


class PublishFuture(Future[PublishReport]):
    """A future for the report. A thread that waits for it may do the append itself."""

    def __init__(self, items: Sequence[bytes], waiting_thread: int | None) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # a publish cannot be cancelled
        self.items = items
        self._waiting_thread = waiting_thread
        self._append: Future[dict[int, Placed]] | None = None

    @property
    def waits(self) -> bool:
        """Whether the current thread is the one that will ask for the result."""
        return threading.get_ident() == self._waiting_thread

    def follow(self, append: Future[dict[int, Placed]]) -> None:
        self._append = append

    def set_result(self, result: PublishReport) -> None:
        super().set_result(result)
        self._append = None  # breaks a reference cycle that would keep all records until garbage collection

    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(exception)
        self._append = None

    def result(self, timeout: float | None = None) -> PublishReport:
        deadline = None if timeout is None else time.monotonic() + timeout
        # In a loop: an append that meets a seal is followed by another append.
        while not self.done() and (append := self._append) is not None and not append.done():
            with suppress(StrandlineError, TimeoutError):
                append.result(_left(deadline))
            if deadline is not None and time.monotonic() >= deadline:
                break
        return super().result(_left(deadline))


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0)


class PublishAttempt:
    """One publish that has passed its gate."""

    def __init__(self, context: PublishContext, name: str, flow_id: str | None, done: PublishFuture) -> None:
        self._context = context
        self._name = name
        self._flow_id = flow_id
        self._done = done
        self._gate = context.node.gate(name)
        self._prepared = Prepared((), {}, {})
        self._entry_id = ""
        self._taken = False
        # The offset of each record and the error of each partition; used only if some records had to move.
        self._offsets: dict[int, list[int]] = {}
        self._errors: dict[int, StrandlineError] = {}

    def start(self) -> None:
        self._guarded(self._start)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - the caller gets it from the future
            self._fail(error)

    def _start(self) -> None:
        compiled = self._context.event_types.compiled(self._name)
        # Only the metadata of the other categories has a flow id.
        made = "" if compiled.entry.event_type.category == "undefined" else uuid.uuid4().hex
        now_ms = self._context.clock.now_ms()
        prepared = preparation.prepare(compiled, self._done.items, now_ms, self._flow_id or made)
        if isinstance(prepared, PublishReport):
            self._finish(prepared)
        elif not prepared.count:
            self._finish(PublishReport(0))
        else:
            self._prepared = prepared
            self._entry_id = compiled.entry.id
            self._append(compiled.entry.active, {p: range(len(b)) for p, b in prepared.batches.items()})

    def _append(self, timeline: Timeline, members: Members) -> None:
        """Store the records with these numbers in this timeline."""
        batches = {p: self._prepared.batches[p].pick(numbers) for p, numbers in members.items()}
        storage = self._context.storages.get(timeline.storage_id)
        future = storage.append(timeline.topic, batches, waits=self._done.waits)
        self._done.follow(future)
        future.add_done_callback(lambda f: self._guarded(lambda: self._answered(timeline, members, f)))

    def _answered(self, timeline: Timeline, members: Members, future: Future[dict[int, Placed]]) -> None:
        error = future.exception()
        if isinstance(error, Sealed):
            self._sealed(timeline, members, error.token)
        elif isinstance(error, NotFound) and (active := self._entry().active).order != timeline.order:
            # Nothing is stored: the timeline was closed and removed before the append, and its topic deleted.
            self._append(active, members)
        elif error is not None:
            raise error
        else:
            self._stored(timeline, members, future.result())

    def _sealed(self, timeline: Timeline, members: Members, token: str) -> None:
        """The topic was sealed and nothing is stored: act on the state of the switch that sealed it."""
        switch = self._context.catalog.switches.get(token)
        if switch is None:
            raise NotFound(f"event type {self._name!r} does not exist")
        action = on_sealed(switch.state)
        if action is PublisherAction.WAIT:
            self._park(lambda: self._sealed(timeline, members, token))
        elif action is PublisherAction.UNSEAL:
            unseal(self._context.storages, timeline, token)
            self._append(timeline, members)
        else:
            self._append(self._entry().active, members)

    def _stored(self, timeline: Timeline, members: Members, placed: Mapping[int, Placed]) -> None:
        """The storage has the records. If it cannot seal, the current state decides which of them readers see."""
        late: dict[int, list[int]] = {}
        if not isinstance(self._context.storages.get(timeline.storage_id), SealableStorage):
            self._taken = True
            entry = self._entry()
            now = next(t for t in entry.timelines if t.order == timeline.order)
            state = _state(entry, now)
            if state is State.CLOSING:
                self._park(lambda: self._stored(timeline, members, placed))
                return
            late = _late(members, placed, state, now.latest_position)
        if not late and not self._offsets:
            self._finish(preparation.report(self._prepared, placed))
            return
        self._note(members, placed)
        if late:
            self._append(entry.active, late)
        else:
            whole = {p: Placed(offsets, self._errors.get(p)) for p, offsets in self._offsets.items()}
            self._finish(preparation.report(self._prepared, whole))

    def _note(self, members: Members, placed: Mapping[int, Placed]) -> None:
        """Keep the offsets of these records, because the publish is spread over several timelines."""
        if not self._offsets:
            self._offsets = {p: [UNKNOWN] * len(batch) for p, batch in self._prepared.batches.items()}
        for partition, part in placed.items():
            for number, offset in zip(members[partition], part.offsets, strict=True):
                self._offsets[partition][number] = offset
            if part.error is not None:
                self._errors[partition] = part.error

    def _entry(self) -> CatalogEntry:
        """The event type that this publish was prepared for; NotFound if it was deleted."""
        entry = self._context.event_types.entry(self._name)
        if entry.id != self._entry_id:
            raise NotFound(f"event type {self._name!r} was deleted and created again")
        return entry

    def _park(self, resume: Callable[[], None]) -> None:
        """Wait until the switch is decided; later publishes wait behind this one."""
        self._gate.park(lambda: self._guarded(resume))
        self._context.node.wake()

    def _finish(self, report: PublishReport) -> None:
        self._gate.leave()
        self._done.set_result(report)

    def _fail(self, error: BaseException) -> None:
        self._gate.leave()
        if not isinstance(error, StrandlineError):
            log.error("a publish failed", exc_info=error)
        # Records that the storage accepted must not be reported as failed because of a later error.
        if isinstance(error, OutcomeUnknown) or (self._taken and not isinstance(error, NotFound)):
            log.warning("the outcome of a publish is unknown: %s", error)
            self._done.set_result(preparation.unknown_report(self._prepared.items))
            return
        self._done.set_exception(error)


def _late(
    members: Members, placed: Mapping[int, Placed], state: State | None, ends: Mapping[str, int] | None
) -> dict[int, list[int]]:
    """The numbers of the records that were stored past the end of their timeline."""
    late: dict[int, list[int]] = {}
    if state is not State.DONE:  # the timeline has no end yet
        return late
    for partition, part in placed.items():
        last = (ends or {}).get(str(partition), -1)
        for number, offset in zip(members[partition], part.offsets, strict=True):
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
