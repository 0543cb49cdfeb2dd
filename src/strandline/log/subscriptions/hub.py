"""Renews the leases of this process's streams and notifies them of changes, with three threads for all streams."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from strandline.engine.heartbeat import Heartbeat
from strandline.engine.watcher import Watcher
from strandline.log.subscriptions.port import StreamLeases
from strandline.log.subscriptions.session import StreamSession
from strandline.log.upkeep import guarded

# How late the expired commit timeout of a client that reads no data may be noticed.
_LONGEST_PAUSE_S = 1.0


class Hub:
    """The open streams of one process; `node` identifies the process in the store."""

    def __init__(
        self, leases: StreamLeases, lease_ms: int, poll_interval_ms: int, upkeep: Callable[[str], None]
    ) -> None:
        """`upkeep` is called about once a second for every subscription that is read here."""
        self.node = str(uuid.uuid4())
        self._leases = leases
        self._upkeep = upkeep
        self._watcher = Watcher(leases.versions, poll_interval_ms / 1000)
        self._sessions: dict[str, StreamSession] = {}
        self._lock = threading.Lock()
        # Two threads, so that no lease expires while a storage does not answer.
        self._heartbeats = [
            Heartbeat("renewing the leases of streams", self._renew, lease_ms, longest=_LONGEST_PAUSE_S),
            Heartbeat("the upkeep of streams", self._tend, lease_ms, longest=_LONGEST_PAUSE_S),
        ]
        self._started = False

    def add(self, session: StreamSession) -> None:
        with self._lock:
            unwatch = self._watcher.watch(session.subscription_id, session.changed)
            self._sessions[session.id] = session
            session.on_close = lambda: self._forget(session.id, unwatch)
            if not self._started:
                self._started = True
                for heartbeat in self._heartbeats:
                    heartbeat.start()

    def _forget(self, stream_id: str, unwatch: Callable[[], None]) -> None:
        with self._lock:
            self._sessions.pop(stream_id, None)
        unwatch()

    def changed(self, subscription_id: str) -> None:
        """Notify the streams of this process at once; other processes poll every few milliseconds."""
        self._watcher.notify(subscription_id)

    def _open(self) -> list[StreamSession]:
        with self._lock:
            return [*self._sessions.values()]

    def _renew(self) -> None:
        if sessions := self._open():
            self._leases.renew(self.node, [session.id for session in sessions if not session.finished])

    def _tend(self) -> None:
        sessions = self._open()
        for session in sessions:
            with guarded("the upkeep of a subscription's stream"):
                session.check()
        for subscription_id in {session.subscription_id for session in sessions}:
            with guarded("the upkeep of a subscription"):
                self._upkeep(subscription_id)

    def close(self) -> None:
        for heartbeat in self._heartbeats:
            heartbeat.stop()
        for session in self._open():
            session.close()
        self._watcher.close()
