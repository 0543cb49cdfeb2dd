"""The client of Redis and Valkey, one server or a Cluster: pipelines by node, WAIT, and error mapping.

The only importer of the driver. Its cluster client knows which node serves a key. Commands are sent to all nodes
before an answer is read, so a call takes one round trip. A node that fails does not fail the commands of other
nodes. Redirects of a Cluster are followed. Every call ends, even if a server does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

from strandline.engine.redis_address import RedisAddress
from strandline.engine.redis_commands import Command, Script, pack
from strandline.errors import OutcomeUnknown, StorageFull, StrandlineError, Unavailable

try:
    from redis import ConnectionPool, RedisError
    from redis.backoff import NoBackoff
    from redis.cluster import ClusterNode, RedisCluster
    from redis.crc import key_slot
    from redis.exceptions import (
        AskError,
        MovedError,
        NoScriptError,
        OutOfMemoryError,
        RedisClusterException,
        ResponseError,
        TryAgainError,
    )
    from redis.retry import Retry
except ImportError as cause:
    raise Unavailable("the Redis driver is not installed; run pip install 'strandline[redis]'") from cause

_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
# How often a command is sent at most: it may be redirected, or its node may need a script first.
_ROUNDS = 5
_PAUSE_SECONDS = 0.02
_ATTEMPTS = 10
# The driver's errors of the cluster's topology have another base.
_FAILED = (RedisError, RedisClusterException)

#: The connections to the master of a key; None if no master serves it at the moment.
_Route = Callable[[bytes], "ConnectionPool | None"]


@dataclass(frozen=True)
class _Unsent:
    """The answer to a command that was not sent, because there is no connection."""

    where: str
    cause: Exception | None


@dataclass(frozen=True)
class _Lost:
    """The answer to a command that was sent, but not answered."""

    where: str
    cause: Exception


@dataclass(frozen=True)
class _Uncopied:
    """The answer to a write that too few replicas have received."""

    copies: object


# Commands with these answers were not carried out. They are sent again, if necessary to another node.
_REDIRECTED = frozenset({MovedError, AskError, TryAgainError, NoScriptError})
# Commands with these answers are sent again once, because their node may have a new master.
_UNANSWERED = frozenset({_Unsent, _Lost})
_PLAIN = frozenset({int, bytes, list, type(None)})


class _Server:
    """A single server: the only node."""

    def __init__(self, address: RedisAddress, options: Mapping[str, Any]) -> None:
        ((host, port),) = address.hosts
        no_retry = Retry(NoBackoff(), 0)
        self._pool = ConnectionPool(host=host, port=port, db=address.database, retry=no_retry, **options)

    def route(self) -> _Route:
        return lambda _: self._pool

    def at(self, _host: str, _port: int) -> ConnectionPool | None:
        return self._pool

    def slots(self) -> list[int]:
        """One slot of every master."""
        return [0]

    def refresh(self) -> None:
        """A single server has no topology."""

    def close(self) -> None:
        self._pool.close()


class _Cluster:
    """The masters of a Cluster, as the driver's cluster client knows them."""

    def __init__(self, address: RedisAddress, options: Mapping[str, Any]) -> None:
        self._hosts = address.hosts
        self._options = options
        self._lock = threading.Lock()
        self._client: Any = None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = RedisCluster(
                    startup_nodes=[ClusterNode(host, port) for host, port in self._hosts],
                    require_full_coverage=False,  # a failed shard must not fail the others
                    # The driver sends one command to any master, and tries others if that one has failed.
                    retry=Retry(NoBackoff(), _ATTEMPTS),
                    **self._options,
                )
            return self._client

    def route(self) -> _Route:
        slots = self._connected().nodes_manager.slots_cache

        def pool(key: bytes) -> ConnectionPool | None:
            nodes = slots.get(key_slot(key))
            return nodes[0].redis_connection.connection_pool if nodes else None

        return pool

    def at(self, host: str, port: int) -> ConnectionPool | None:
        node = self._connected().get_node(host, port)
        return node.redis_connection.connection_pool if node else None

    def slots(self) -> list[int]:
        firsts: dict[str, int] = {}
        for slot, nodes in sorted(self._connected().nodes_manager.slots_cache.items()):
            firsts.setdefault(nodes[0].name, slot)
        return list(firsts.values())

    def refresh(self) -> None:
        """Ask the Cluster for its masters. If no known node answers, start again with the nodes of the address."""
        try:
            self._connected().nodes_manager.initialize(disconnect_startup_nodes_pools=False)
        except _FAILED:
            self.close()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


class _Exchange:
    """Commands that are sent to one node on one connection, and their answers. An error is an answer, too."""

    def __init__(self, pool: ConnectionPool | None, numbers: Sequence[int], failure: _Unsent | None) -> None:
        self._pool = pool
        self._failure: _Unsent | _Lost | None = failure
        self._connection: Any = None
        self.numbers = numbers
        self.before: dict[int, Sequence[bytes]] = {}
        """Commands that are sent before a command, and whose answers are skipped."""
        self.copies: Any = None
        """The answer to WAIT."""

    @property
    def _where(self) -> str:
        options = self._pool.connection_kwargs if self._pool else {}
        return f"{options.get('host')}:{options.get('port')}"

    def send(self, commands: Sequence[Command], wait: bytes) -> None:
        if self._pool is None:
            return
        try:
            self._connection = self._pool.get_connection()
        except _FAILED as error:
            self._failure = _Unsent(self._where, error)
            return
        packed = [commands[number].packed for number in self.numbers]
        if self.before:
            parts = zip(self.numbers, packed, strict=True)
            packed = [b"".join([*self.before.get(number, ()), one]) for number, one in parts]
        try:
            self._connection.send_packed_command([b"".join([*packed, wait])])
        except _FAILED as error:
            self._failure = _Lost(self._where, error)

    def receive(self, wait: bytes) -> list[Any]:
        """The answers in the order of the commands. The connection is released."""
        answers: list[Any] = []
        try:
            if self._failure is None:
                for number in self.numbers:
                    for _ in self.before.get(number, ()):
                        self._answer()
                    answers.append(self._answer())
                self.copies = self._answer() if wait else None
        except _FAILED as error:
            self._failure = _Lost(self._where, error)
        finally:
            if self._pool is not None and self._connection is not None:
                self._pool.release(self._connection)
        return answers + [self._failure] * (len(self.numbers) - len(answers))

    def _answer(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error


class Redis:
    """One server or a Cluster. Connections are made when they are needed; all methods are thread-safe.

    A write is acknowledged when `replicas` replicas have received it, and `OutcomeUnknown` if they have not within
    `wait_ms`. `scripts` are all scripts that are called.
    """

    def __init__(
        self, url: str, *, replicas: int = 0, wait_ms: int = 1_000, scripts: Sequence[Script] = ()
    ) -> None:
        address = RedisAddress.parse(url)
        self.where = str(address)
        self._replicas = replicas
        self._wait = pack(b"WAIT", replicas, wait_ms) if replicas else b""
        self._load = [pack(b"SCRIPT", b"LOAD", script.text) for script in scripts]
        options = {
            "username": address.username,
            "password": address.password,
            "socket_timeout": _ANSWER_SECONDS + (wait_ms / 1000 if replicas else 0),
            "socket_connect_timeout": _CONNECT_SECONDS,
            "protocol": 2,
        }
        self._nodes = _Cluster(address, options) if address.cluster else _Server(address, options)

    def read(self, commands: Sequence[Command]) -> list[Any]:
        """The answer to each command. The answer to a command that failed is a `StrandlineError`."""
        return self._mapped(self._run(commands, _UNANSWERED, b""), Unavailable)

    def write(self, commands: Sequence[Command]) -> list[Any]:
        """As `read`; the answer to a command that may have been carried out is `OutcomeUnknown`."""
        return self._mapped(self._run(commands, _UNANSWERED - {_Lost}, self._wait), OutcomeUnknown)

    def keys_on_masters(self, name: bytes) -> list[bytes]:
        """One key of that name on every master. The keys change when slots move to other masters."""
        try:
            slots = self._nodes.slots()
        except _FAILED as error:
            raise self._error(_Unsent(self.where, error), Unavailable) from error
        return [b"{%b}%b" % (_tag(slot), name) for slot in slots]

    def close(self) -> None:
        self._nodes.close()

    def _run(self, commands: Sequence[Command], unanswered: frozenset[type], wait: bytes) -> list[Any]:
        answers: list[Any] = [None] * len(commands)
        pending: Sequence[int] = range(len(commands))
        for attempt in range(_ROUNDS):
            exchanges = self._exchanges(commands, answers, pending)
            for exchange in exchanges:
                exchange.send(commands, wait)
            seen: set[type] = set()
            for exchange in exchanges:
                received = self._received(exchange, wait)
                seen.update(map(type, received))
                for number, answer in zip(exchange.numbers, received, strict=True):
                    answers[number] = answer
            repeated = _REDIRECTED if attempt else _REDIRECTED | unanswered
            pending = [n for n in pending if type(answers[n]) in repeated] if seen & repeated else ()
            self._adapt(seen)
            if not pending:
                break
        return answers

    def _exchanges(
        self, commands: Sequence[Command], answers: Sequence[Any], pending: Sequence[int]
    ) -> list[_Exchange]:
        """One per node. A command that was redirected goes where its last answer says."""
        try:
            route = self._nodes.route()
        except _FAILED as error:
            return [_Exchange(None, pending, _Unsent(self.where, error))]
        numbers: dict[ConnectionPool | None, list[int]] = {}
        for number in pending:
            last = answers[number]
            asked = type(last) is AskError
            pool = self._nodes.at(last.host, last.port) if asked else route(commands[number].key)
            numbers.setdefault(pool, []).append(number)
        exchanges = [
            _Exchange(pool, some, None if pool else _Unsent(self.where, None)) for pool, some in numbers.items()
        ]
        for exchange in exchanges:
            exchange.before = {n: self._before(answers[n]) for n in exchange.numbers if answers[n] is not None}
        return exchanges

    def _before(self, last: Any) -> Sequence[bytes]:
        if type(last) is AskError:
            return [pack(b"ASKING")]
        return self._load if type(last) is NoScriptError else ()

    def _received(self, exchange: _Exchange, wait: bytes) -> list[Any]:
        received = exchange.receive(wait)
        copies = exchange.copies
        if not wait or (isinstance(copies, int) and copies >= self._replicas):
            return received
        failures = (ResponseError, _Unsent, _Lost)
        return [answer if isinstance(answer, failures) else _Uncopied(copies) for answer in received]

    def _adapt(self, seen: set[type]) -> None:
        if not seen.isdisjoint({_Unsent, _Lost, MovedError}):
            self._nodes.refresh()
        if TryAgainError in seen:
            time.sleep(_PAUSE_SECONDS)

    def _mapped(self, answers: list[Any], lost: type[StrandlineError]) -> list[Any]:
        """Errors of the driver and of connections become ours; `lost` is the error of a missing answer."""
        if _PLAIN.issuperset(map(type, answers)):
            return answers
        return [answer if type(answer) in _PLAIN else self._error(answer, lost) for answer in answers]

    def _error(self, answer: Any, lost: type[StrandlineError]) -> StrandlineError:
        error: StrandlineError
        match answer:
            case _Unsent(where, None):
                error = Unavailable(f"no master of the Redis Cluster at {where} serves the key at the moment")
            case _Unsent(where, cause):
                error = Unavailable(f"there is no connection to Redis at {where}: {cause}")
                error.__cause__ = cause
            case _Lost(where, cause):
                error = lost(f"Redis at {where} did not answer")
                error.__cause__ = cause
            case _Uncopied(copies):
                reached = f"{copies or 0} of {self._replicas} replicas received the write"
                error = OutcomeUnknown(f"Redis at {self.where}: only {reached}")
            case OutOfMemoryError():
                error = StorageFull(f"Redis at {self.where} has no memory left: {answer}")
                error.__cause__ = answer
            case _:
                error = Unavailable(f"Redis at {self.where} refused the command: {answer}")
                error.__cause__ = answer
        return error


@cache
def _tag(slot: int) -> bytes:
    """A hash tag whose keys are in that slot."""
    return next(tag for tag in (b"%d" % number for number in count()) if key_slot(tag) == slot)
