"""Keeps the leases of a process that runs a job, while the process gets work done."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from strandline.engine.heartbeat import Heartbeat
from strandline.errors import StrandlineError
from strandline.progress import Meter

log = logging.getLogger(__name__)

# How old the stored progress of a process may be.
_SHOW_SECONDS = 1.0


class Registry(Protocol):
    """Where processes are registered and store their progress, such as `ProcessLeases`."""

    def renew(self, owner: str, progress: str = "") -> None: ...

    def leave(self, owner: str) -> None: ...


class LeaseKeeper:
    """Renews the leases of one process in the background.

    A process that calls `worked` less often than every `stall_ms` has stalled: its leases are not renewed, so that
    they expire and another process can take over. They are renewed again after the next `worked`.
    """

    def __init__(
        self,
        what: str,
        registry: Registry,
        lease_ms: int,
        stall_ms: int,
        steady: Callable[[], float] = time.monotonic,
        kind: str = "",
    ) -> None:
        """`kind` begins the name of the owner, where processes of several kinds share a registry."""
        self.owner = kind + uuid.uuid4().hex
        self.meter = Meter()
        self._what = what
        self._registry = registry
        self._lease_ms = lease_ms
        self._stall_ms = stall_ms
        self._steady = steady
        self._worked_at = steady()
        self._told = False

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Register the process, renew its leases while it works, and release them afterwards."""
        self.worked()
        self.register()
        try:
            with Heartbeat(f"renewing {self._what}", self.beat, self._lease_ms, longest=_SHOW_SECONDS):
                yield
        finally:
            with suppress(StrandlineError):  # the leases expire by themselves
                self._registry.leave(self.owner)

    def worked(self) -> None:
        """The process has completed a step, or has found that there is nothing to do."""
        self._worked_at = self._steady()

    @property
    def stalled(self) -> bool:
        return (self._steady() - self._worked_at) * 1000 > self._stall_ms

    def register(self) -> None:
        """Renew the leases and store the progress, also after they have expired."""
        self._registry.renew(self.owner, self.meter.text)

    def beat(self) -> None:
        """Renew the leases unless the process has stalled."""
        if not self.stalled:
            self._told = False
            self.register()
        elif not self._told:
            self._told = True
            log.warning(
                "no step has succeeded for %d s; %s stops, so that another process can take over. The lines "
                "before name the cause",
                *(self._stall_ms // 1000, f"renewing {self._what}"),
            )
