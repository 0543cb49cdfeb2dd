"""How we talk to ZooKeeper: one connection that comes back by itself, and its errors as ours.

The only importer of the driver. Every call ends within the session timeout. A call is never repeated here: a write
whose answer got lost is `OutcomeUnknown`, and may even be carried out later, when the connection is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strandline.errors import OutcomeUnknown, Unavailable

try:
    from kazoo.client import KazooClient, KazooState
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
    raise Unavailable("ZooKeeper's driver is not installed here: pip install 'strandline[zookeeper]'") from cause

_START_SECONDS = 10.0
_ANY = -1


@dataclass(frozen=True)
class Znode:
    """A node of ZooKeeper's tree."""

    value: str
    version: int
    owner: int
    """The session that an ephemeral node belongs to; 0 for others."""


@dataclass(frozen=True)
class Check:
    """The node must be there."""

    path: str


@dataclass(frozen=True)
class Create:
    """The node must not be there; it goes with this session."""

    path: str
    value: str


@dataclass(frozen=True)
class Set:
    path: str
    value: str
    version: int = _ANY


@dataclass(frozen=True)
class Delete:
    path: str
    version: int = _ANY


Step = Check | Create | Set | Delete


@dataclass(frozen=True)
class Refusal:
    """Which step of a write could not be done; none of them was."""

    step: int
    why: str


class Zookeeper:
    """One session after the other. `listener` hears from the driver's thread when a connection comes or goes."""

    def __init__(self, hosts: str, session_timeout_ms: int, listener: Callable[[bool], None]) -> None:
        self.hosts = hosts
        self.session_timeout_ms = session_timeout_ms
        self._connected = threading.Event()
        self._listener = listener
        seconds = session_timeout_ms / 1000
        self._client = KazooClient(
            hosts,
            timeout=seconds,
            # Its own default would wait for up to an hour between two attempts.
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": min(1.0, seconds / 6)},
            command_retry={"max_tries": 3, "max_delay": min(1.0, seconds / 6)},
        )
        self._attend_to_handshakes()
        self._client.add_listener(self._state_changed)

    def _attend_to_handshakes(self) -> None:
        connection = self._client._connection  # noqa: SLF001 - there is no other way to either of the two
        invoke = connection._invoke  # noqa: SLF001 - same

        def shaking(timeout: float, request: Any, xid: int | None = None) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout, request, xid)
            # A server that has just started may never answer; waiting for the whole timeout costs the session.
            answer = invoke(timeout / 3, request, xid)
            # It may grant less than what was asked for, which the driver keeps to itself.
            if answer[0].time_out > 0:
                self.session_timeout_ms = answer[0].time_out
            return answer

        connection._invoke = shaking  # noqa: SLF001 - same

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
        """0 while there is none."""
        client_id = self._client.client_id
        return int(client_id[0] or 0) if client_id else 0

    def get(self, path: str, watch: Callable[[Any], None] | None = None) -> Znode | None:
        return self.get_many([path], watch)[0]

    def get_many(self, paths: Sequence[str], watch: Callable[[Any], None] | None = None) -> list[Znode | None]:
        """All in one round trip; None for one that is not there, which leaves no watch either."""
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
        """All steps or none; None if they are done."""
        transaction = self._client.transaction()
        for step in steps:
            match step:
                case Check(path):
                    transaction.check(path, _ANY)
                case Create(path, value):
                    transaction.create(path, value.encode(), ephemeral=True)
                case Set(path, value, version):
                    transaction.set_data(path, value.encode(), version)
                case Delete(path, version):
                    transaction.delete(path, version)
        with self._calling(OutcomeUnknown):
            return _refusal(self._wait(transaction.commit_async()))

    def sync(self, path: str) -> None:
        """What was written before, by whoever and through whichever server, can be read after this."""
        with self._calling(Unavailable):
            self._wait(self._client.sync_async(path))

    def ensure(self, path: str, value: str = "") -> None:
        """Have a lasting node, with its parents; one that is there stays as it is."""
        with self._calling(OutcomeUnknown):
            try:
                self._wait(self._client.create_async(path, value.encode(), makepath=True))
            except NodeExistsError:
                return

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Hold ZooKeeper's usual kind of lock at that path."""
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
        """`lost` says what it means that the answer did not come."""
        try:
            yield
        except (ConnectionLoss, OperationTimeoutError, KazooTimeoutError) as cause:
            raise lost(f"ZooKeeper at {self.hosts} did not answer", retry_after=1) from cause
        except KazooException as cause:
            raise Unavailable(f"ZooKeeper at {self.hosts}: {cause!r}", retry_after=1) from cause

    def close(self) -> None:
        """End the session; its ephemeral nodes are gone at once if there is a connection."""
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
