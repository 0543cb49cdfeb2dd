"""Keeps a ZooKeeper session usable: its mark, its heartbeat, its watches.

The mark is an ephemeral node, one per session. Writes that belong to the session are made together with a check
for it: one that was begun in a session and comes to the server in the next, after a long sleep, does nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Callable
from typing import Any

from strandline.clock import boot_ms
from strandline.coordination.lease import Beat
from strandline.engine.zookeeper import Create, Zookeeper
from strandline.errors import StrandlineError, Unavailable

log = logging.getLogger(__name__)

_RETRY_EVERY_MS = 100


class Session:
    """`told` is called after every change, `settle` with every heartbeat, from threads that nobody knows."""

    def __init__(
        self, hosts: str, root: str, timeout_ms: int, told: Callable[[], None], settle: Callable[[], None]
    ) -> None:
        self.root = root
        self._told = told
        self._settle = settle
        self._state = threading.Lock()
        self._losses = 0
        self._beat: Beat | None = None
        self._name: str | None = None
        self._armed: set[str] = set()
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = False
        self.zk = Zookeeper(hosts, timeout_ms, self._connection_changed)
        self.zk.start()
        self._keeper = threading.Thread(target=self._keep, name="strandline-coordination", daemon=True)

    def start(self) -> None:
        try:
            self._restore()
        except BaseException:
            self.zk.close()
            raise
        self._keeper.start()

    @property
    def beat(self) -> Beat | None:
        """The last answered heartbeat; None while there is doubt."""
        return self._beat

    @property
    def name(self) -> str:
        """Of the current session."""
        if self._name is None:
            raise Unavailable("the coordination session is lost; a new one is on its way", retry_after=1)
        return self._name

    def path(self, *names: str) -> str:
        return "/".join((self.root.rstrip("/"), *names))

    def mark(self, session: str) -> str:
        return self.path("sessions", session)

    def _connection_changed(self, connected: bool) -> None:
        """Runs in the driver's thread. Suspended is doubt already: lost may never come."""
        if not connected:
            with self._state:
                self._losses += 1
                self._beat = None
        self._events.put("")
        self._told()

    def _changed(self, event: Any) -> None:
        if event.path:  # without one it only repeats that the connection is gone
            self._events.put(event.path)

    def _keep(self) -> None:
        failing = False
        while not self._closed:
            path = self._next_event()
            try:
                self._attend(path)
                failing = False
            except StrandlineError as error:
                if not failing and not self._closed:
                    log.warning("the coordination session is in doubt: %s", error)
                failing = True
                with self._state:
                    self._beat = None

    def _next_event(self) -> str:
        beat = self._beat
        wait_ms = beat.sent_ms + beat.lease_ms // 3 - boot_ms() if beat else _RETRY_EVERY_MS
        try:
            return self._events.get(timeout=max(0, wait_ms) / 1000)
        except queue.Empty:
            return ""

    def _attend(self, path: str) -> None:
        beat = self._beat
        if beat is None:
            self._restore()
            return
        if path:
            self._arm(path)
            self._told()
        if boot_ms() >= beat.sent_ms + beat.lease_ms // 3:
            self._heartbeat()

    def _restore(self) -> None:
        """After every new connection: watches do not survive, and the session may be another one."""
        if self._name is None or not self._is_marked(self._name):
            self._name = None
            self._make_tree()
            name = uuid.uuid4().hex
            # If the answer gets lost the next attempt makes another: one too many goes with its session.
            self.zk.write(Create(self.mark(name), ""))
            self._name = name
        self._armed.clear()
        for path in ("version", "locked_et", "nodes"):
            self._arm(self.path(path))
        self._heartbeat()
        self._told()

    def _make_tree(self) -> None:
        version = self.path("version")
        if self.zk.get(version) is None:
            with self.zk.locked(self.path("lock")):
                for name in ("locked_et", "nodes", "sessions"):
                    self.zk.ensure(self.path(name))
                # The last one: where it is, the others are.
                self.zk.ensure(version, "0")

    def _is_marked(self, session: str) -> bool:
        mark = self.zk.get(self.mark(session))
        return mark is not None and mark.owner == self.zk.session_id

    def _heartbeat(self) -> None:
        losses, sent_ms, session = self._losses, boot_ms(), self.name
        if not self._is_marked(session):
            self._name = None
            raise Unavailable("the session has run out", retry_after=1)
        with self._state:
            # One that was answered before the connection broke says nothing about now.
            if losses == self._losses:
                self._beat = Beat(session, sent_ms, self.zk.session_timeout_ms)
        self._settle()

    def _arm(self, path: str) -> None:
        """Watch again what has just changed, and what is new below it."""
        if path in {self.path("locked_et"), self.path("nodes")}:
            children = [f"{path}/{child}" for child in self.zk.children(path, self._changed)]
            self._arm_values([child for child in children if child not in self._armed])
        else:
            self._armed.discard(path)
            self._arm_values([path])

    def _arm_values(self, paths: list[str]) -> None:
        nodes = self.zk.get_many(paths, self._changed)
        self._armed.update(path for path, node in zip(paths, nodes, strict=True) if node is not None)

    def close(self) -> None:
        self._closed = True
        self._events.put("")
        self.zk.close()
        self._keeper.join()
        self._beat = None
