"""The processes that write to feeds, so that others notice if one of them was killed.

A process that is killed between recording an operation and applying it leaves an operation that is in the log, but
not in the store. Another process, or the same one after a restart, applies what is recorded then.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from strandline.clock import Clock
from strandline.engine.database import Database, Tables
from strandline.errors import StrandlineError

_LEASE_MS = 20_000
_RENEW_MS = 5_000


class Writers:
    """Registers the process of a node, and finds those that were killed. Thread-safe."""

    def __init__(self, database: Callable[[], Database], clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._owner = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._opened: Tables | None = None
        self._renewed_ms: int | None = None
        self._busy = 0
        self._in_doubt = False

    def _tables(self) -> Tables:
        if self._opened is None:
            self._opened = Tables(self._database(), "writers of feeds", "strandline.feeds", "writers.sql")
        return self._opened

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While an operation is recorded and applied. StrandlineError if nobody would notice a kill."""
        self._register()
        with self._lock:
            self._busy += 1
        try:
            yield
        except StrandlineError:
            self._end()
            raise
        else:
            self._end()
        # After any other exception the operation counts as not finished, like that of a killed process.

    def _end(self) -> None:
        with self._lock:
            self._busy -= 1

    def doubt(self) -> None:
        """An operation may be recorded, although it was not applied."""
        self._in_doubt = True

    def _register(self) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            if self._renewed_ms is None or abs(now_ms - self._renewed_ms) >= _RENEW_MS:
                self._renew(now_ms)

    def _renew(self, now_ms: int) -> None:
        try:
            self._tables().store("renew", owner=self._owner, until_ms=now_ms + _LEASE_MS)
        except StrandlineError:
            if self._renewed_ms is None:
                raise
            # The row is still there. If it expires, others repeat operations, which does no harm.
        self._renewed_ms = now_ms

    def renew(self) -> None:
        """From time to time: say that this process is alive, if it has written."""
        if self._renewed_ms is not None:
            self._register()

    def catch_up(self, apply: Callable[[], object]) -> None:
        """Call `apply` if operations may be recorded only: after a doubt, or if a process was killed."""
        with self._lock:
            killed = [owner for (owner,) in self._tables().fetch("killed", now_ms=self._clock.now_ms())]
            doubt, self._in_doubt = self._in_doubt, False
        if not killed and not doubt:
            return
        try:
            apply()
        except BaseException:
            self._in_doubt |= doubt
            raise
        self._remove(killed)

    def _remove(self, owners: Sequence[str]) -> None:
        with self._lock:
            self._tables().store("remove", owners=[*owners])

    def leave(self) -> None:
        """At a normal end, unless an operation may be recorded only."""
        if self._renewed_ms is not None and not self._busy and not self._in_doubt:
            self._remove([self._owner])
