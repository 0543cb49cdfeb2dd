"""The ZooKeeper client: one connection that reconnects by itself, and error mapping.

The only importer of the driver. Every call ends within the session timeout. No call is retried here: a write whose
answer was lost is `OutcomeUnknown`, and may be carried out later, after a reconnect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strandline.errors import OutcomeUnknown, Unavailable

try:
    from kazoo.client import KazooClient, KazooState, TransactionRequest
    from kazoo.exceptions import (
        BadVersionError,
        ConnectionLoss,
        KazooException,
        NodeExistsError,
        NoNodeError,
        OperationTimeoutError,
        RolledBackError,
        RuntimeInconsistency,
    )
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.protocol.serialization import Connect
except ImportError as cause:
    raise Unavailable("the ZooKeeper driver is not installed; run pip install 'strandline[zookeeper]'") from cause

_START_SECONDS = 10.0
_ANY = -1


@dataclass(frozen=True)
class Znode:
    value: str
    version: int
    owner: int
    """The session that an ephemeral node belongs to; 0 for persistent nodes."""


#: Adds one operation to a transaction of the driver.
Step = Callable[[TransactionRequest], None]


def must_exist(path: str) -> Step:
    """The write fails if the node does not exist."""
    return lambda transaction: transaction.check(path, _ANY)


def create(path: str, value: str) -> Step:
    """Create an ephemeral node. The write fails if the node exists."""
    return lambda transaction: transaction.create(path, value.encode(), ephemeral=True)


def put(path: str, value: str, version: int = _ANY) -> Step:
    return lambda transaction: transaction.set_data(path, value.encode(), version)


def delete(path: str, version: int = _ANY) -> Step:
    return lambda transaction: transaction.delete(path, version)


@dataclass(frozen=True)
class Refusal:
    """Why a write was refused: the number of the first step that failed. No step was carried out."""

    step: int
    why: str


class Zookeeper:
    """A client that starts a new session when one is lost.

    `listener` is called in the driver's thread with True when the connection is made and False when it is lost.
    """

    def __init__(self, hosts: str, session_timeout_ms: int, listener: Callable[[bool], None]) -> None:
        self.hosts = hosts
        self.session_timeout_ms = session_timeout_ms
        self._connected = threading.Event()
        self._listener = listener
        seconds = session_timeout_ms / 1000
        self._client = KazooClient(
            hosts,
            timeout=seconds,
            # The driver's default waits up to an hour between two attempts.
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": min(1.0, seconds / 6)},
            command_retry={"max_tries": 3, "max_delay": min(1.0, seconds / 6)},
        )
        self._patch_handshake()
        self._client.add_listener(self._state_changed)

    def _patch_handshake(self) -> None:
        connection = self._client._connection  # noqa: SLF001 - the driver has no public way to do either
        invoke = connection._invoke  # noqa: SLF001 - same

        def handshake(timeout: float, request: Any, xid: int | None = None) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout, request, xid)
            # A server that is starting may never answer; waiting for the whole timeout would cost the session.
            answer = invoke(timeout / 3, request, xid)
            # The server may grant a shorter timeout than requested; the driver does not report it.
            if answer[0].time_out > 0:
                self.session_timeout_ms = answer[0].time_out
            return answer

        connection._invoke = handshake  # noqa: SLF001 - same

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._listener(state == KazooState.CONNECTED)

    def start(self) -> None:
        with self._mapped(OutcomeUnknown):
            try:
                self._client.start(_START_SECONDS)
            except KazooTimeoutError as cause:
                raise Unavailable(f"ZooKeeper does not answer at {self.hosts}", retry_after=5) from cause

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    def wait_connected(self, seconds: float) -> bool:
        return self._connected.wait(seconds)

    @property
    def session_id(self) -> int:
        """0 while there is no session."""
        client_id = self._client.client_id
        return int(client_id[0] or 0) if client_id else 0

    def get(self, path: str) -> Znode | None:
        return self.get_many([path])[0]

    def get_many(self, paths: Sequence[str], watch: Callable[[Any], None] | None = None) -> list[Znode | None]:
        """All nodes in one round trip; None for a node that does not exist, which is not watched either."""
        with self._calling(Unavailable):
            asked = [self._client.get_async(path, watch) for path in paths]
            return [self._node(answer) for answer in asked]

    def _node(self, answer: Any) -> Znode | None:
        try:
            value, stat = self._wait(answer)
        except NoNodeError:
            return None
        return Znode(value.decode(), stat.version, stat.ephemeralOwner)

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        with self._calling(Unavailable):
            return list(self._wait(self._client.get_children_async(path, watch)))

    def write(self, *steps: Step) -> Refusal | None:
        """Carry out all steps or none. Returns None when they are done."""
        transaction = self._client.transaction()
        for step in steps:
            step(transaction)
        with self._calling(OutcomeUnknown):
            return _refusal(self._wait(transaction.commit_async()))

    def sync(self, path: str) -> None:
        """After this, reads see every write that was completed before, on any server."""
        with self._calling(Unavailable):
            self._wait(self._client.sync_async(path))

    def ensure(self, path: str, value: str = "") -> None:
        """Create a persistent node and its parents; a node that exists is not changed."""
        with self._calling(OutcomeUnknown):
            try:
                self._wait(self._client.create_async(path, value.encode(), makepath=True))
            except NodeExistsError:
                return

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Hold the lock of ZooKeeper's lock recipe at that path."""
        with self._calling(OutcomeUnknown):
            lock = self._client.Lock(path)
            lock.acquire(timeout=_START_SECONDS)
            try:
                yield
            finally:
                lock.release()

    def _wait(self, answer: Any) -> Any:
        return answer.get(timeout=self.session_timeout_ms / 1000)

    @contextmanager
    def _calling(self, lost: type[OutcomeUnknown | Unavailable]) -> Iterator[None]:
        if not self.connected:
            raise Unavailable(f"there is no connection to ZooKeeper at {self.hosts}", retry_after=1)
        with self._mapped(lost):
            yield

    @contextmanager
    def _mapped(self, lost: type[OutcomeUnknown | Unavailable]) -> Iterator[None]:
        """Map the driver's errors; `lost` is the error for a missing answer."""
        try:
            yield
        except (ConnectionLoss, OperationTimeoutError, KazooTimeoutError) as cause:
            raise lost(f"ZooKeeper at {self.hosts} did not answer", retry_after=1) from cause
        except KazooException as cause:
            raise Unavailable(f"ZooKeeper at {self.hosts}: {cause!r}", retry_after=1) from cause

    def close(self) -> None:
        """End the session. Its ephemeral nodes vanish at once if there is a connection."""
        self._client.remove_listener(self._state_changed)
        self._client.stop()
        self._client.close()
        self._connected.clear()


_WHY = {NoNodeError: "missing", NodeExistsError: "exists", BadVersionError: "changed"}


def _refusal(answers: Sequence[Any]) -> Refusal | None:
    for number, answer in enumerate(answers):
        if isinstance(answer, KazooException) and not isinstance(answer, (RolledBackError, RuntimeInconsistency)):
            if type(answer) not in _WHY:
                raise answer
            return Refusal(number, _WHY[type(answer)])
    return None
