"""Maintains a ZooKeeper session: its mark, its heartbeat and its watches.

The mark is an ephemeral node, one per session. Every write that belongs to the session also checks that the mark
exists. So a write that was started in one session and reaches the server in the next, after a long sleep, fails.
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
from strandline.engine.zookeeper import Zookeeper, create
from strandline.errors import StrandlineError, Unavailable

log = logging.getLogger(__name__)

_RETRY_EVERY_MS = 100


class ZookeeperSession:
    """`on_change` is called after every change and `on_heartbeat` with every heartbeat, in any thread.

    One thread handles events and sends heartbeats, because a heartbeat may find that watches must be set again.
    """

    def __init__(
        self,
        hosts: str,
        root: str,
        timeout_ms: int,
        on_change: Callable[[], None],
        on_heartbeat: Callable[[], None],
    ) -> None:
        self.root = root
        self._on_change = on_change
        self._on_heartbeat = on_heartbeat
        self._state = threading.Lock()
        self._losses = 0
        #: The last answered heartbeat; None while the connection is lost or in doubt.
        self.beat: Beat | None = None
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
    def name(self) -> str:
        """The name of the current session. Unavailable while there is none."""
        if self._name is None:
            raise Unavailable("the coordination session was lost; a new one is being started", retry_after=1)
        return self._name

    def path(self, *names: str) -> str:
        return "/".join((self.root.rstrip("/"), *names))

    def mark(self, session: str) -> str:
        return self.path("sessions", session)

    def _connection_changed(self, connected: bool) -> None:
        """Called in the driver's thread. A suspended connection counts as lost: "lost" may never be reported."""
        if not connected:
            with self._state:
                self._losses += 1
                self.beat = None
        self._events.put("")
        self._on_change()

    def _changed(self, event: Any) -> None:
        if event.path:  # events without a path report the connection, which `_connection_changed` handles
            self._events.put(event.path)

    def _keep(self) -> None:
        failing = False
        while not self._closed:
            path = self._next_event()
            try:
                self._handle(path)
                failing = False
            except Exception as error:
                if not failing and not self._closed:
                    unexpected = not isinstance(error, StrandlineError)
                    log.warning(
                        "renewing the coordination session failed; retrying: %s", error, exc_info=unexpected
                    )
                failing = True
                with self._state:
                    self.beat = None

    def _next_event(self) -> str:
        beat = self.beat
        wait_ms = beat.sent_ms + beat.lease_ms // 3 - boot_ms() if beat else _RETRY_EVERY_MS
        try:
            return self._events.get(timeout=max(0, wait_ms) / 1000)
        except queue.Empty:
            return ""

    def _handle(self, path: str) -> None:
        beat = self.beat
        if beat is None:
            self._restore()
            return
        if path:
            self._arm(path)
            self._on_change()
        if boot_ms() >= beat.sent_ms + beat.lease_ms // 3:
            self._heartbeat()

    def _restore(self) -> None:
        """Set up the session after a reconnect: watches are lost, and it may be a new session."""
        if self._name is None or not self._is_marked(self._name):
            self._name = None
            self._make_tree()
            name = uuid.uuid4().hex
            # If the answer is lost, the next attempt creates another mark; the first one ends with its session.
            self.zk.write(create(self.mark(name), ""))
            self._name = name
        self._armed.clear()
        for path in ("version", "locked_et", "nodes"):
            self._arm(self.path(path))
        self._heartbeat()
        self._on_change()

    def _make_tree(self) -> None:
        version = self.path("version")
        if self.zk.get(version) is None:
            with self.zk.locked(self.path("lock")):
                for name in ("locked_et", "nodes", "sessions"):
                    self.zk.ensure(self.path(name))
                # Created last: where it exists, the others exist.
                self.zk.ensure(version, "0")

    def _is_marked(self, session: str) -> bool:
        mark = self.zk.get(self.mark(session))
        return mark is not None and mark.owner == self.zk.session_id

    def _heartbeat(self) -> None:
        losses, sent_ms, session = self._losses, boot_ms(), self.name
        if not self._is_marked(session):
            self._name = None
            raise Unavailable("the coordination session has expired", retry_after=1)
        with self._state:
            # An answer from before a lost connection does not prove that the session still exists.
            if losses == self._losses:
                self.beat = Beat(session, sent_ms, self.zk.session_timeout_ms)
        self._on_heartbeat()

    def _arm(self, path: str) -> None:
        """Set the watch again on a path that has changed, and on new nodes below it."""
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
        self.beat = None
