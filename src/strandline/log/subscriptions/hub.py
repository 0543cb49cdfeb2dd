"""Keeps the leases of this process's streams and tells them what others changed; three threads for all."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable

from strandline.engine.watcher import Watcher
from strandline.errors import StrandlineError
from strandline.log.subscriptions.port import StreamLeases
from strandline.log.subscriptions.session import Session

log = logging.getLogger(__name__)

# The commit timeout of a client that takes no data is looked at this often.
_LONGEST_PAUSE_S = 1.0


class Hub:
    """One incarnation of a process, as the store knows it by `node`."""

    def __init__(
        self, leases: StreamLeases, lease_ms: int, poll_interval_ms: int, upkeep: Callable[[str], None]
    ) -> None:
        """`upkeep` is called now and then for every subscription that is read here."""
        self.node = str(uuid.uuid4())
        self._leases = leases
        self._upkeep = upkeep
        # Three attempts before a lease runs out.
        self._pause_s = min(lease_ms / 3000, _LONGEST_PAUSE_S)
        self._watcher = Watcher(leases.versions, poll_interval_ms / 1000)
        self._sessions: dict[str, tuple[Session, Callable[[], None]]] = {}
        self._condition = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def add(self, session: Session) -> None:
        with self._condition:
            self._sessions[session.id] = session, self._watcher.watch(session.subscription_id, session.changed)
            if not self._threads:
                # Apart, so that a storage that does not answer costs no lease.
                self._threads = [self._start("leases", self._renew), self._start("streams", self._tend)]
            self._condition.notify_all()

    def remove(self, session: Session) -> None:
        with self._condition:
            _, unwatch = self._sessions.pop(session.id, (session, lambda: None))
        unwatch()
        session.close()

    def changed(self, subscription_id: str) -> None:
        """Tell this process's streams at once; those of others look every few milliseconds."""
        self._watcher.notify(subscription_id)

    def _start(self, what: str, act: Callable[[list[Session]], None]) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(act,), name=f"strandline-{what}", daemon=True)
        thread.start()
        return thread

    def _run(self, act: Callable[[list[Session]], None]) -> None:
        while True:
            with self._condition:
                while not self._sessions and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                sessions = [session for session, _ in self._sessions.values()]
            act(sessions)
            with self._condition:
                if not self._closed:
                    self._condition.wait(self._pause_s)

    def _renew(self, sessions: list[Session]) -> None:
        _guarded(self._leases.renew, self.node, [session.id for session in sessions if not session.finished])

    def _tend(self, sessions: list[Session]) -> None:
        for session in sessions:
            _guarded(session.check)
        for subscription_id in {session.subscription_id for session in sessions}:
            _guarded(self._upkeep, subscription_id)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            sessions = [session for session, _ in self._sessions.values()]
        for thread in self._threads:
            thread.join()
        for session in sessions:
            self.remove(session)
        self._watcher.close()


def _guarded(act: Callable[..., None], *arguments: str | list[str]) -> None:
    """One stream's trouble is not the others'."""
    try:
        act(*arguments)
    except StrandlineError as error:
        log.warning("tending the streams of subscriptions failed; it is tried again: %s", error.detail)
    except Exception:
        log.exception("tending the streams of subscriptions failed; it is tried again")
