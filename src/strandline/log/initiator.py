"""Performs a timeline switch, or the growth of a partition count, step by step (`switching.Step`)."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from strandline import failpoints
from strandline.clock import Clock, to_rfc3339
from strandline.errors import Conflict, Invalid, LeaseLost, OutcomeUnknown, Sealed, StrandlineError, Unavailable
from strandline.log.catalog import Catalog, SwitchEffect
from strandline.log.model import CatalogEntry, EventType, Statistics, Switch, SwitchKind, Timeline, WaitingNode
from strandline.log.node import PROTOCOL, LockValue, MemberValue, Node, decided, encode
from strandline.log.open_storages import Storages, fencing, unseal
from strandline.log.serving import Steps, Wake
from strandline.log.settings import LogSettings
from strandline.log.storage import SealableStorage
from strandline.log.switching import Outcome, Phase, PublisherAction, State, Step, next_step, on_sealed
from strandline.logging_setup import fields
from strandline.room import CounterMetric, CounterValues

log = logging.getLogger(__name__)

_INSPECT_SECONDS = 0.2
_SWITCHES = CounterMetric(
    "strandline_switches", "Switches and growths that this node has started and that have ended.", "outcome"
)


class Refused(Exception):
    """The state does not allow a step; the cause is the error that the caller gets."""


@dataclass
class _SwitchInProgress:
    entry: CatalogEntry
    switch: Switch
    wake: Wake
    ends: dict[str, int] = field(default_factory=dict)
    #: The first error.
    error: BaseException | None = None
    done: bool = False
    #: The commit may have taken effect.
    doubtful: bool = False
    #: The new topic may exist.
    creates: bool = False


class Initiator:
    """A switch or growth yields while it waits for other nodes, so that no thread waits with it."""

    def __init__(
        self, node: Node, catalog: Catalog, storages: Storages, settings: LogSettings, clock: Clock
    ) -> None:
        self._node = node
        self._catalog = catalog
        self._storages = storages
        self._settings = settings
        self._clock = clock
        self._ended: Counter[str] = Counter()

    def switch(self, entry: CatalogEntry, storage_id: str, wake: Wake) -> Steps[None]:
        """Move an event type to another storage while it is written and read."""
        self._refuse_unknown(storage_id)
        topic = f"{entry.event_type.name[:120]}.{uuid.uuid4().hex}"
        switch = self._described(entry, "switch", storage_id, topic, entry.event_type.partition_count)
        return self._run(_SwitchInProgress(entry, switch, wake))

    def waits_for(self, switch: Switch) -> tuple[WaitingNode, ...]:
        """The nodes that have not confirmed an undecided switch yet."""
        if decided(switch):
            return ()
        return tuple(_unconfirmed(self._members(), self._node.coordination.version()))

    def counts(self) -> CounterValues:
        return {_SWITCHES: dict(self._ended)}

    def check(self, entry: CatalogEntry, storage_id: str) -> None:
        """Raise the error that a switch would fail with: unknown storage, another switch, old nodes, no answer."""
        self._refuse_unknown(storage_id)
        name = entry.event_type.name
        if name in self._node.coordination.locks() or not decided(entry.switch):
            raise Conflict(f"another switch of {name!r} is under way; wait until it ends, or abort it")
        _refuse_old(self._members())
        for one in {storage_id, entry.active.storage_id}:
            self._storages.check_ready(one)

    def _refuse_unknown(self, storage_id: str) -> None:
        if storage_id not in {storage.id for storage in self._catalog.storages.list()}:
            raise Invalid(f"storage {storage_id!r} does not exist; add it first")

    def grow(self, entry: CatalogEntry, partitions: int, wake: Wake) -> Steps[None]:
        """Give an event type more partitions."""
        active, now = entry.active, entry.event_type.partition_count
        if partitions < now:
            raise Invalid(f"the partition count cannot shrink from {now} to {partitions}")
        if partitions > self._settings.max_partitions:
            raise Invalid(f"{partitions} partitions are too many; at most {self._settings.max_partitions}")
        if partitions == now:
            return _nothing()
        switch = self._described(entry, "grow", active.storage_id, active.topic, partitions)
        return self._run(_SwitchInProgress(entry, switch, wake))

    def abort(self, entry: CatalogEntry, switch: Switch) -> bool:
        """Abort an undecided switch of any node; False if it is done."""
        aborted = self._node.abort(entry, switch)
        if aborted:
            try:
                self._node.coordination.bump()
            except StrandlineError as error:
                log.warning("nodes were not notified of the aborted switch; their next poll finds it: %s", error)
        return aborted

    def _described(
        self, entry: CatalogEntry, kind: SwitchKind, storage_id: str, topic: str, partitions: int
    ) -> Switch:
        token, name, now = str(uuid.uuid4()), entry.event_type.name, to_rfc3339(self._clock.now_ms())
        return Switch(
            token, name, kind, State.PREPARING, storage_id, topic, partitions, self._node.id, started_at=now
        )

    def _run(self, run: _SwitchInProgress) -> Steps[None]:
        switch = run.switch
        step = Step.LOCK
        while step is not Step.END:
            outcome = yield from self._do(step, run)
            step = next_step(step, outcome)
        self._ended["done" if run.done else "not done"] += 1
        log.info("switch ended", extra=fields(event_type=switch.event_type, kind=switch.kind, done=run.done))
        if not run.done or _is_interrupt(run.error):
            raise _reported(run)

    def _do(self, step: Step, run: _SwitchInProgress) -> Generator[None, None, Outcome]:
        """Perform a step. Every error becomes an outcome, so that the lock is always released at the end."""
        try:
            failpoints.hit(f"initiator.{step}")
            waiting = _STEPS[step](self, run)
            if waiting is not None:
                yield from waiting
        except Refused as error:
            return self._failed(step, run, error.__cause__ or error, Outcome.REFUSED)
        except OutcomeUnknown as error:
            return self._failed(step, run, error, Outcome.UNKNOWN)
        except StrandlineError as error:
            return self._failed(step, run, error, Outcome.FAILED)
        except BaseException as error:  # noqa: BLE001 - raised again when the switch has ended
            return self._failed(step, run, error, Outcome.BROKEN)
        return Outcome.OK

    @staticmethod
    def _failed(step: Step, run: _SwitchInProgress, error: BaseException, outcome: Outcome) -> Outcome:
        broken = outcome is Outcome.BROKEN
        log.log(
            logging.ERROR if broken else logging.WARNING,
            "step %s of the switch of %s did not succeed: %s", step, run.switch.event_type, error,
            exc_info=error if broken else None,
        )  # fmt: skip
        run.doubtful |= step is Step.COMMIT and outcome in {Outcome.UNKNOWN, Outcome.BROKEN}
        if run.error is None and not isinstance(error, Refused):
            run.error = error
        return outcome

    # -- the steps

    def _lock(self, run: _SwitchInProgress) -> None:
        value = encode(LockValue(run.switch.token, Phase.WARM))
        if not self._node.coordination.lock(run.switch.event_type, value):
            raise Refused from Conflict(
                f"another switch of {run.switch.event_type!r} is under way; wait until it ends, or abort it"
            )

    def _record(self, run: _SwitchInProgress) -> None:
        name = run.switch.event_type
        others = [other for other in self._catalog.switches.undecided() if other.event_type == name]
        if others:
            # Fails if this node has lost the lock meanwhile. Otherwise the initiators of the others have lost it.
            self._node.coordination.relock(name, encode(LockValue(run.switch.token, Phase.WARM)))
        for other in others:
            self._node.abort(run.entry, other)
        try:
            self._catalog.switches.begin(run.entry, run.switch)
        except Conflict as error:
            raise Refused from error

    def _create(self, run: _SwitchInProgress) -> None:
        storage = self._storages.get(run.switch.storage_id)
        if run.switch.kind == "grow":
            storage.grow(run.switch.topic, run.switch.partitions)
            return
        storage.check_ready()
        run.creates = True
        retention_ms = run.entry.event_type.retention_ms(self._settings.retention_ms)
        storage.create_topic(run.switch.topic, run.switch.partitions, retention_ms)

    def _warm(self, run: _SwitchInProgress) -> Steps[None]:
        return self._await_all(self._node.coordination.bump(), run)

    def _hold(self, run: _SwitchInProgress) -> Steps[None]:
        coordination = self._node.coordination
        coordination.relock(run.switch.event_type, encode(LockValue(run.switch.token, Phase.HOLD)))
        return self._await_all(coordination.bump(), run)

    def _await_all(self, version: int, run: _SwitchInProgress) -> Steps[None]:
        """Yield until every live member has confirmed the version; Unavailable after the timeout or an abort."""
        coordination = self._node.coordination
        unwatch = coordination.watch(run.wake)
        deadline_ms = self._clock.steady_ms() + self._settings.switch_timeout_ms
        try:
            while waiting := self._waiting_for(version):
                if not coordination.sure():
                    raise LeaseLost("the initiator lost its coordination session")
                if self._clock.steady_ms() >= deadline_ms:
                    raise Unavailable(
                        f"nodes did not confirm in time: {', '.join(map(str, waiting))}", retry_after=5
                    )
                yield
                self._refuse_aborted(run)
        finally:
            unwatch()

    def _refuse_aborted(self, run: _SwitchInProgress) -> None:
        """A catalog that does not answer for a moment does not end the wait: the next step asks it again."""
        with suppress(Unavailable):
            row = self._catalog.switches.get(run.switch.token)
            if row is None or row.state.final:
                raise Refused from Unavailable("the switch was aborted", retry_after=1)

    def _waiting_for(self, version: int) -> list[WaitingNode]:
        members = self._members()
        _refuse_old(members)
        return _unconfirmed(members, version)

    def _members(self) -> dict[str, MemberValue]:
        members = self._node.coordination.members()
        return {node: msgspec.json.decode(text, type=MemberValue) for node, text in members.items()}

    def _close(self, run: _SwitchInProgress) -> None:
        if not self._catalog.switches.close(run.switch.token):
            raise Refused from Unavailable("the switch was aborted", retry_after=1)

    def _seal(self, run: _SwitchInProgress) -> None:
        active = run.entry.active
        storage = self._storages.get(active.storage_id)
        if run.switch.kind != "switch":
            return
        if not isinstance(storage, SealableStorage):
            # Ends what a holder that was killed has begun: readers, and the snapshot, would stop before it.
            for fence in self._catalog.fences.all(run.entry.id):
                fencing(storage).raise_fence(active.topic, fence)
            return
        try:
            storage.seal(active.topic, run.switch.token)
        except Sealed as error:
            other = self._catalog.switches.get(error.token)
            if other is None or on_sealed(other.state) is not PublisherAction.UNSEAL:
                raise
            # An aborted switch has left the seal behind, and no publisher has met it since.
            storage.unseal(active.topic, error.token)
            storage.seal(active.topic, run.switch.token)

    def _snapshot(self, run: _SwitchInProgress) -> None:
        if run.switch.kind == "switch":
            active = run.entry.active
            bounds = self._storages.get(active.storage_id).bounds(active.topic)
            run.ends = {str(partition): bound.last for partition, bound in enumerate(bounds)}

    def _commit(self, run: _SwitchInProgress) -> None:
        now = to_rfc3339(self._clock.now_ms())
        kind, switch, active = run.entry.event_type, run.switch, run.entry.active
        if switch.kind == "grow":
            effect = SwitchEffect(redefined=(kind, _grown(kind, switch.partitions, now)))
        else:
            effect = SwitchEffect(
                closed=msgspec.structs.replace(active, closed_at=now, latest_position=run.ends),
                opened=Timeline(
                    str(uuid.uuid4()), kind.name, active.order + 1, switch.storage_id, switch.topic, now, now
                ),
            )
        if not self._catalog.switches.commit(switch.token, effect):
            raise Refused from Unavailable("the switch was aborted by another node", retry_after=1)
        run.done = True

    def _inspect(self, run: _SwitchInProgress) -> None:
        threading.Event().wait(_INSPECT_SECONDS)
        row = self._catalog.switches.get(run.switch.token)
        if row is None or row.state is not State.DONE:
            raise Refused from Unavailable("the switch was aborted", retry_after=1)
        run.done = True

    def _abort(self, run: _SwitchInProgress) -> None:
        if not self._catalog.switches.abort(run.switch.token):
            run.done = True
            raise Refused("the switch is already done")
        run.doubtful = False

    def _unseal(self, run: _SwitchInProgress) -> None:
        if run.switch.kind == "switch":
            unseal(self._storages, run.entry.active, run.switch.token)

    def _discard(self, run: _SwitchInProgress) -> None:
        if run.switch.kind != "switch":  # the topic is the active one, or was deleted with its event type
            return
        place = (run.switch.storage_id, run.switch.topic)
        if run.creates:
            self._catalog.mark_for_deletion(*place)
        elif self._catalog.claim_topic(*place):
            # There is nothing to delete. A storage that never answers would stay marked, and in use.
            self._catalog.forget_topic(*place)

    def _unlock(self, run: _SwitchInProgress) -> None:
        self._node.coordination.unlock(run.switch.event_type)

    def _announce(self, run: _SwitchInProgress) -> None:  # noqa: ARG002 - every step has the same signature
        self._node.coordination.bump()


_STEPS: dict[Step, Callable[[Initiator, _SwitchInProgress], Steps[None] | None]] = {
    step: getattr(Initiator, f"_{step}") for step in Step if step is not Step.END
}


def _refuse_old(members: Mapping[str, MemberValue]) -> None:
    """Conflict if a node of another release would not understand a switch."""
    for node, value in members.items():
        if value.protocol != PROTOCOL:
            raise Conflict(f"node {node} has protocol {value.protocol}, not {PROTOCOL}; upgrade all nodes first")


def _unconfirmed(members: Mapping[str, MemberValue], version: int) -> list[WaitingNode]:
    return [WaitingNode(node, one.host, one.pid) for node, one in members.items() if one.version < version]


def _nothing() -> Steps[None]:
    """Has nothing to do."""
    yield from ()


def _reported(run: _SwitchInProgress) -> BaseException:
    """The error for the caller. Unless the commit is doubtful, the switch certainly did not happen."""
    error = run.error
    if run.doubtful and not _is_interrupt(error):
        return OutcomeUnknown("the switch may or may not have happened; list the timelines before you retry")
    if error is None or isinstance(error, OutcomeUnknown | LeaseLost):
        return Unavailable("the switch was aborted; publishing continues as before; retry", retry_after=1)
    return error


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether the caller's thread was told to stop, for example by Ctrl-C."""
    return error is not None and not isinstance(error, Exception)


def _grown(kind: EventType, partitions: int, now: str) -> EventType:
    return msgspec.structs.replace(
        kind,
        partitions=partitions,
        default_statistic=Statistics(read_parallelism=partitions, write_parallelism=partitions),
        updated_at=now,
    )
