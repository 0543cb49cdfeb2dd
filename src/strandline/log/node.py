"""One process as a node in timeline switches: it holds publishers, confirms, and aborts orphaned switches.

Every process that publishes is a node. It joins on its first publish; a process that only reads never joins.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable

import msgspec

from strandline import failpoints
from strandline.clock import Clock
from strandline.coordination import Coordination
from strandline.errors import StrandlineError, Unavailable
from strandline.log.catalog import Catalog
from strandline.log.gate import Gate
from strandline.log.model import CatalogEntry, Switch
from strandline.log.open_storages import Storages, unseal
from strandline.log.settings import LogSettings
from strandline.log.switching import NodeAction, Phase, node_action
from strandline.log.warming import Warming

log = logging.getLogger(__name__)

#: A switch is refused if the nodes have different protocols.
PROTOCOL = 1
_NEVER_MS = 1 << 62
# Watches wake the thread at once; this interval covers a watch event that was lost.
_POLL_SECONDS = 0.5


class LockValue(msgspec.Struct, frozen=True):
    """The value of an event type's lock."""

    token: str
    phase: Phase


class MemberValue(msgspec.Struct, frozen=True):
    """The value of a node's membership. Host and process are for operators; older releases have none."""

    version: int
    protocol: int = PROTOCOL
    host: str = ""
    pid: int = 0


def encode(value: LockValue | MemberValue) -> str:
    return msgspec.json.encode(value).decode()


def _value(version: int) -> str:
    """The value of this process."""
    return encode(MemberValue(version, host=socket.gethostname(), pid=os.getpid()))


class Node:
    def __init__(
        self,
        coordination: Callable[[], Coordination],
        catalog: Catalog,
        storages: Storages,
        settings: LogSettings,
        clock: Clock,
    ) -> None:
        self.id = str(uuid.uuid4())
        self._connect = coordination
        self._catalog = catalog
        self._storages = storages
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._coordination: Coordination | None = None
        self._joined = False
        self._confirmed = -1
        self._gates: dict[str, Gate] = {}
        self._wakeup = threading.Event()
        self._warming = Warming(storages, clock, self._wakeup.set)
        self._closed = False
        self._thread: threading.Thread | None = None

    # -- for publishers and switches

    @property
    def coordination(self) -> Coordination:
        """The session of this process, opened when first needed."""
        with self._lock:
            if self._coordination is None:
                self._coordination = self._connect()
                self._coordination.watch(self._wakeup.set)
            return self._coordination

    def ready_to_publish(self) -> None:
        """Join on the first call; Unavailable while it is not certain that other nodes see this one."""
        if self._closed:
            raise Unavailable("the log is closed; open the platform again")
        if not self._joined:
            self.join()
        if self._coordination is None or not self._coordination.sure():
            raise Unavailable(
                "this node has lost its coordination session; it reconnects automatically", retry_after=1
            )

    def has_gate(self, event_type: str) -> bool:
        return event_type in self._gates

    def gate(self, event_type: str) -> Gate:
        found = self._gates.get(event_type)
        if found is None:
            with self._lock:
                found = self._gates.setdefault(
                    event_type, Gate(self._settings.max_waiting_publishes, self._wakeup.set)
                )
        return found

    def wake(self) -> None:
        """Poll soon, because a publish is parked."""
        self._wakeup.set()

    # -- membership

    def join(self) -> None:
        """Become a member. Idempotent."""
        coordination = self.coordination
        with self._lock:
            if self._joined:
                return
            # Register first, then read the state: a switch either waits for this node or is seen by it.
            coordination.join(self.id, _value(0))
            self._confirmed = 0
            self._poll()
            self._joined = True
            self._thread = threading.Thread(target=self._run, name="strandline-node", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        failing = False
        while not self._closed:
            self._wakeup.wait(_POLL_SECONDS)
            self._wakeup.clear()
            try:
                self._poll()
                failing = False
            except StrandlineError as error:
                if not failing:  # logged once, not on every attempt
                    log.warning("polling for switches failed; retrying: %s", error.detail)
                failing = True
            except Exception:
                log.exception("polling for switches failed; retrying")
            self._refuse_late()

    def refuse_waiting(self) -> None:
        """Refuse the publishes that wait for a switch. They were not started, so nothing of them is stored."""
        for gate in [*self._gates.values()]:
            gate.expire(_NEVER_MS)

    def _refuse_late(self) -> None:
        """Refuse queued publishes past their deadline, even while the coordination is unavailable."""
        now_ms = self._clock.steady_ms()
        for gate in [*self._gates.values()]:
            gate.expire(now_ms)

    def _poll(self) -> None:
        """Hold or release every gate according to the locks and the catalog, then confirm the version."""
        coordination = self._coordination
        if coordination is None:
            return
        if self.id not in coordination.members():
            # After a lost session `sure` stays False until this node has joined again.
            coordination.join(self.id, _value(0))
            self._confirmed = 0
        if not coordination.sure():
            return
        version = coordination.version()
        # Rows are read before locks, so an undecided row without a lock has lost its initiator.
        undecided = self._catalog.switches.undecided()
        locks = {n: msgspec.json.decode(v, type=LockValue) for n, v in coordination.locks().items()}
        if locks:
            failpoints.hit("node.look")
        self._warming.forget_others({lock.token for lock in locks.values()})
        gated = [name for name, gate in [*self._gates.items()] if gate.held or gate.parked]
        for name in {*locks, *gated, *(switch.event_type for switch in undecided)}:
            self._settle(name, locks.get(name), undecided)
        self._confirm(version)

    def _confirm(self, version: int) -> None:
        gates = [*self._gates.values()]
        if version == self._confirmed or any(gate.held and not gate.drained for gate in gates):
            return
        if self._warming.underway():
            return
        failpoints.hit("node.confirm")
        if self._coordination is not None:
            self._coordination.update(_value(version))
            self._confirmed = version

    def _settle(self, name: str, lock: LockValue | None, undecided: list[Switch]) -> None:
        entry = self._catalog.get(name)
        switch = entry.switch if entry is not None else None
        if lock is not None and (switch is None or switch.token != lock.token):
            switch = None  # its row is not written yet
        action = node_action(lock.phase if lock else None, switch.state if switch else None)
        if action is NodeAction.ABORT and entry is not None and switch is not None:
            if switch.token in {other.token for other in undecided}:
                failpoints.hit("node.abort")
                self.abort(entry, switch)
            return
        if action is NodeAction.HOLD:
            failpoints.hit("node.hold")
            self.gate(name).hold()
        elif action is NodeAction.WARM and switch is not None:
            self._warming.begin(switch)
        elif action is NodeAction.RELEASE:
            failpoints.hit("node.release")
            self._release(name)

    def _release(self, name: str) -> None:
        gate = self._gates.get(name)
        if gate is None:
            return
        if gate.parked:
            gate.resume_parked()
        if gate.held:
            gate.release()

    def abort(self, entry: CatalogEntry, switch: Switch) -> bool:
        """Abort an undecided switch; False if it is done. The next poll releases the publishers."""
        if not self._catalog.switches.abort(switch.token):
            return False
        log.warning("the switch of %s was aborted", switch.event_type)
        if switch.kind == "switch":
            try:
                unseal(self._storages, entry.active, switch.token)
            except Exception as error:  # noqa: BLE001 - the next publish or switch removes the seal
                log.warning("the seal of the aborted switch was not removed yet: %s", error)
        self._wakeup.set()
        return True

    def close(self) -> None:
        self._closed = True
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join()
        if self._coordination is not None:
            self._coordination.close()


def decided(switch: Switch | None) -> bool:
    return switch is None or switch.state.final
