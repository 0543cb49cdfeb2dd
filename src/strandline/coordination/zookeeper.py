"""Coordination through ZooKeeper: the nodes `lock`, `version`, `locked_et/…` and `nodes/…` below a root.

Members and locks are ephemeral nodes. In addition, `sessions/…` marks every session (see `zookeeper_session`).
When the answer to a create or a delete is lost, this process assumes that it does not hold the node, and deletes
the node as soon as it is connected again. If it stays disconnected, the node vanishes with the session.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from urllib.parse import quote, unquote

from strandline.clock import boot_ms
from strandline.coordination.lease import Holdings
from strandline.coordination.port import Coordination
from strandline.coordination.zookeeper_session import ZookeeperSession
from strandline.engine.watcher import Watcher
from strandline.engine.zookeeper import Refusal, Step, create, delete, must_exist, put
from strandline.errors import Conflict, LeaseLost, OutcomeUnknown, Unavailable

log = logging.getLogger(__name__)

_ATTEMPTS = 5


class ZookeeperCoordination(Coordination):
    def __init__(self, hosts: str, root: str, session_timeout_ms: int = 6_000) -> None:
        # Held while this process changes its locks or its membership.
        self._own = threading.Lock()
        self._bumping = threading.Lock()
        self._holdings = Holdings()
        self._doubtful: set[str] = set()
        self._node: str | None = None
        self._counter = itertools.count()
        self._changes = 0
        # ZooKeeper reports changes by itself. Polling is for `sure`, which can change by time alone.
        self._watcher = Watcher(
            lambda keys: dict.fromkeys(keys, (self._changes, self.sure())), session_timeout_ms / 20_000
        )
        self._session = ZookeeperSession(hosts, root, session_timeout_ms, self._changed, self._settle)
        self._zk = self._session.zk
        self._session.start()

    def _changed(self) -> None:
        self._changes = next(self._counter)
        self._watcher.wake()

    def join(self, node: str, value: str) -> None:
        thing = _thing("nodes", node)
        with self._own:
            session = self._session.name
            if self._node not in {None, thing} and self._holdings.session_of(self._node or "") == session:
                raise Conflict(f"this process is already a member, as {self._node}")
            if all(self._took_over(thing, value, session) for _ in range(_ATTEMPTS)):
                raise Unavailable(f"{thing} cannot be created", retry_after=1)
            self._holdings.drop(self._node or "")
            self._holdings.take(thing, session)
            self._node = thing

    def _took_over(self, thing: str, value: str, session: str) -> Refusal | None:
        """Replace the node of an earlier session of this process, which may vanish at any moment."""
        path = self._session.path(thing)
        old = self._zk.get(path)
        removal = [delete(path, old.version)] if old else []
        return self._take(thing, session, *removal, create(path, value))

    def _take(self, thing: str, session: str, *steps: Step) -> Refusal | None:
        try:
            refusal = self._zk.write(must_exist(self._session.mark(session)), *steps)
        except OutcomeUnknown:
            self._doubtful.add(thing)
            raise
        if refusal is not None and refusal.step == 0:
            raise Unavailable("the coordination session was lost; a new one is being started", retry_after=1)
        return refusal

    def update(self, value: str) -> None:
        self._change(self._node or "", value)

    def relock(self, name: str, value: str) -> None:
        self._change(_thing("locked_et", name), value)

    def _change(self, thing: str, value: str) -> None:
        with self._own:
            session = self._holdings.session_of(thing)
            if session is None or self._write_with_retries(session, put(self._session.path(thing), value)):
                raise LeaseLost(f"this session does not hold {thing or 'a membership'} any more")

    def _write_with_retries(self, session: str, step: Step) -> Refusal | None:
        """Setting a value is idempotent, so it is retried until the session must have expired."""
        deadline_ms = boot_ms() + self._zk.session_timeout_ms
        while True:
            try:
                return self._zk.write(must_exist(self._session.mark(session)), step)
            except (Unavailable, OutcomeUnknown):
                left_ms = deadline_ms - boot_ms()
                if left_ms <= 0 or not self._zk.wait_connected(left_ms / 1000):
                    raise

    def members(self) -> dict[str, str]:
        return self._values("nodes")

    def locks(self) -> dict[str, str]:
        return self._values("locked_et")

    def _values(self, folder: str) -> dict[str, str]:
        path = self._session.path(folder)
        names = sorted(self._zk.children(path))
        nodes = self._zk.get_many([f"{path}/{name}" for name in names])
        return {unquote(name): node.value for name, node in zip(names, nodes, strict=True) if node is not None}

    def version(self) -> int:
        return self._version()[0]

    def _version(self) -> tuple[int, int]:
        """The version, and the version of its node in ZooKeeper."""
        node = self._zk.get(self._session.path("version"))
        if node is None:
            raise Unavailable(f"the nodes below {self._session.root} were deleted in ZooKeeper", retry_after=5)
        return int(node.value), node.version

    def bump(self) -> int:
        """OutcomeUnknown if the answer was lost; retry then, because an extra version does no harm."""
        with self._bumping:
            while True:
                current, expected = self._version()
                step = put(self._session.path("version"), str(current + 1), expected)
                if self._zk.write(step) is None:
                    return current + 1

    def lock(self, name: str, value: str) -> bool:
        """OutcomeUnknown if the answer was lost; the lock is then released as soon as there is a connection."""
        thing = _thing("locked_et", name)
        with self._own:
            session = self._session.name
            if thing in self._doubtful:
                self._delete_doubtful(thing)
            refusal = self._take(thing, session, create(self._session.path(thing), value))
            if refusal is None:
                self._holdings.take(thing, session)
            elif refusal.why != "exists":
                raise Unavailable(f"{thing} cannot be created", retry_after=1)
            return refusal is None

    def unlock(self, name: str) -> None:
        thing = _thing("locked_et", name)
        with self._own:
            session = self._holdings.session_of(thing)
            if session is None:
                return
            self._holdings.drop(thing)
            self._doubtful.add(thing)
            try:
                self._zk.write(must_exist(self._session.mark(session)), delete(self._session.path(thing)))
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("the lock on %s will be released after a reconnect: %s", name, error)
            else:
                self._doubtful.discard(thing)

    def _settle(self) -> None:
        if self._doubtful:  # otherwise heartbeats would wait for calls that hold the mutex
            with self._own:
                for thing in list(self._doubtful):
                    self._delete_doubtful(thing)

    def _delete_doubtful(self, thing: str) -> None:
        """Delete a node of this session that this process does not believe it holds."""
        if self._holdings.session_of(thing) is None:
            path, session = self._session.path(thing), self._session.name
            self._zk.sync(path)
            node = self._zk.get(path)
            if node is not None and node.owner == self._zk.session_id:
                self._zk.write(must_exist(self._session.mark(session)), delete(path, node.version))
        self._doubtful.discard(thing)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._watcher.watch("", callback)

    def sure(self) -> bool:
        return self._holdings.sure(self._session.beat)

    def close(self) -> None:
        self._session.close()
        self._watcher.close()


def _thing(folder: str, name: str) -> str:
    """A path below the root, with the name escaped to a single part."""
    escaped = quote(name, safe="")
    # `quote` leaves these two unchanged, but they have a meaning in a path.
    return f"{folder}/{escaped.replace('.', '%2E') if escaped in {'.', '..'} else escaped}"
