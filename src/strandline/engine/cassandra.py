"""The Cassandra client: prepared statements, concurrent batches, and error mapping.

The only importer of the driver. Everything is read and written with LOCAL_QUORUM. Every write must be idempotent:
the driver may repeat it, and `Unavailable` does not say whether it was carried out. A password is given as
`env:NAME` and never shown.
"""

from __future__ import annotations

import io
import logging
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from strandline.config import from_environment
from strandline.errors import Invalid, Unavailable

try:
    from cassandra import ConsistencyLevel, DriverException
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
    from cassandra.concurrent import execute_concurrent
    from cassandra.connection import ConnectionException
    from cassandra.policies import DCAwareRoundRobinPolicy, ExponentialReconnectionPolicy, TokenAwarePolicy
    from cassandra.protocol import BatchMessage, ProtocolHandler
    from cassandra.query import (
        BatchStatement,
        BatchType,
        BoundStatement,
        PreparedStatement,
        SimpleStatement,
        tuple_factory,
    )
except ImportError as cause:
    raise Unavailable("the Cassandra driver is not installed; run pip install 'strandline[cassandra]'") from cause

_size_of = struct.Struct(">i").pack
_count_of = struct.Struct(">H").pack
#: The encoded value of a column that is not written. A null costs a tombstone, this costs nothing.
UNSET = _size_of(-2)
NULL = _size_of(-1)

Row = tuple[Any, ...]

_EXAMPLE = "cassandra://user:env:NAME@host:9042/keyspace?datacenter=dc1"
_PORT = 9042
# That of Cassandra 4.0 and newer. To try others first would log warnings.
_PROTOCOL = 5
_CONNECT_SECONDS = 10.0
# Longer than the timeouts of Cassandra itself, whose errors say more.
_ANSWER_SECONDS = 30.0
# Cassandra refuses a batch of 50 KiB by default.
_BATCH_BYTES = 40 << 10
# What Cassandra counts at most for a value besides its encoded bytes.
_VALUE_BYTES = 16
_REQUESTS_IN_FLIGHT = 24
_FAILURES = (DriverException, ConnectionException)
_IDENTIFIER = re.compile(r"[a-z]\w{0,47}", re.ASCII)

# The server warns about every batch of more than 5 KiB, and the driver would log each of these warnings.
logging.getLogger("cassandra.protocol").setLevel(logging.ERROR)


def encoded(value: bytes | None) -> bytes:
    """A value as it is sent: its length and its bytes."""
    return NULL if value is None else _size_of(len(value)) + value


class Write(NamedTuple):
    """A statement and its values, each as the bytes of its type, or None for a null.

    `rest` are the values after these, encoded one after the other. The partition key is among the `values`. Rows
    of one partition are written fastest if they share the same object as `values`.
    """

    statement: str
    values: Sequence[bytes | None]
    rest: bytes = b""


class CassandraSession:
    """A keyspace of a cluster. Thread-safe; do not fork with it open."""

    def __init__(self, url: str) -> None:
        """Invalid if the address cannot be used; Unavailable if no server answers or the keyspace is missing."""
        address = _Address.of(url)
        self.keyspace = address.keyspace
        self.where = f"Cassandra at {','.join(f'{host}:{port}' for host, port in address.hosts)}"
        self._prepared: dict[str, _Prepared] = {}
        self._lock = threading.Lock()
        self._cluster = _cluster(address)
        try:
            with self._mapped():
                self._session: Session = self._cluster.connect()
                self._session.client_protocol_handler = _EncodedRows
                self._check_keyspace()
                self._session.set_keyspace(self.keyspace)
        except BaseException:
            self._cluster.shutdown()
            raise

    def _check_keyspace(self) -> None:
        if self.keyspace not in self._cluster.metadata.keyspaces:
            example = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
            raise Unavailable(
                f"{self.where} has no keyspace {self.keyspace}; create it, for example with "
                f"CREATE KEYSPACE {self.keyspace} WITH replication = {example}"
            )

    def tables(self) -> set[str]:
        with self._mapped():
            asked = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
            return {name for (name,) in self._session.execute(asked, (self.keyspace,))}

    def define(self, statement: str) -> None:
        """Change the schema, and wait until all nodes agree on it."""
        with self._mapped():
            self._session.execute(SimpleStatement(statement), timeout=60)

    def fetch(self, statement: str, *values: Any) -> list[Row]:
        """All rows of a short answer."""
        return self.fetch_later(statement, *values)()

    def fetch_later(self, statement: str, *values: Any) -> Callable[[], list[Row]]:
        """Send a query now; the result is a function that waits for its rows."""
        with self._mapped():
            future = self._session.execute_async(self._statement(statement).bind(values))

        def rows() -> list[Row]:
            with self._mapped():
                return list(future.result())

        return rows

    def fetch_each(self, statement: str, each: Iterable[Sequence[Any]]) -> list[list[Row]]:
        """The rows of many short queries, which run concurrently, in the order of the queries."""
        with self._mapped():
            prepared = self._statement(statement)
            queries = [(prepared.bind(values), ()) for values in each]
            return [list(answer) for answer in self._concurrently(queries)]

    def pages(self, statement: str, *values: Any, size: int = 1_000) -> Iterator[list[Row]]:
        """The rows of a long answer, a page at a time."""
        with self._mapped():
            bound = self._statement(statement).bind(values)
            bound.fetch_size = size
            answer = self._session.execute(bound)
        while True:
            yield list(answer.current_rows)
            if not answer.has_more_pages:
                return
            with self._mapped():
                answer.fetch_next_page()

    def write(self, writes: Sequence[Write]) -> None:
        """Carry out the writes, in any order and concurrently. If one fails, others may have been carried out.

        Writes for the same replicas share batches. A batch is not atomic.
        """
        if not writes:
            return
        with self._mapped():
            batches = list(self._batches(writes))
            self._concurrently([(batch.statement(), None) for batch in batches if batch.size <= _BATCH_BYTES])
            for batch in [batch for batch in batches if batch.size > _BATCH_BYTES]:
                self._session.execute(batch.statement())  # several large rows would fill the connection's buffer

    def _concurrently(self, statements: list[tuple[Any, Any]]) -> list[Any]:
        answers = execute_concurrent(
            self._session, statements, concurrency=_REQUESTS_IN_FLIGHT, raise_on_first_error=True
        )
        return [answer.result_or_exc for answer in answers]

    def _batches(self, writes: Sequence[Write]) -> Iterator[_Batch]:
        """Only a batch of one row can be larger than the limit."""
        filling: dict[Any, _Batch] = {}
        partition: _Partition | None = None
        for write in writes:
            if partition is None or write.values is not partition.values or write.statement != partition.text:
                partition = self._partition(write)
                batch = filling.get(partition.replicas)
            row = partition.prefix + write.rest
            size = len(row) + partition.overhead
            if batch is None or batch.size + size > _BATCH_BYTES:
                if batch is not None:
                    yield batch
                batch = filling[partition.replicas] = _Batch(partition)
            batch.rows.append(row)
            batch.size += size
        yield from filling.values()

    def _partition(self, write: Write) -> _Partition:
        statement, prefix, overhead = self._prepare(write.statement)
        key = [write.values[index] or b"" for index in statement.routing_key_indexes]
        routing_key = key[0] if len(key) == 1 else b"".join([_count_of(len(part)) + part + b"\0" for part in key])
        beginning = b"".join([prefix, *map(encoded, write.values)])
        replicas = self._replicas(routing_key)
        return _Partition(write.statement, write.values, statement, beginning, overhead, routing_key, replicas)

    def _replicas(self, key: bytes) -> Any:
        """What identifies the nodes that store a partition."""
        hosts = self._cluster.metadata.get_replicas(self.keyspace, key)
        return frozenset(host.host_id for host in hosts)

    def _statement(self, text: str) -> PreparedStatement:
        return self._prepare(text).statement

    def _prepare(self, text: str) -> _Prepared:
        prepared = self._prepared.get(text)
        if prepared is None:
            with self._lock:
                prepared = self._prepared.get(text) or _Prepared.of(self._session.prepare(text))
                self._prepared[text] = prepared
        return prepared

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        if self._cluster.is_shutdown:
            raise Unavailable(f"the connections to {self.where} are closed")
        try:
            yield
        except NoHostAvailable as error:
            reason = _text(next(iter(error.errors.values()), "all connections are closed"))
            raise Unavailable(
                f"{self.where} does not answer: {reason}; check that it runs and that the address is right",
                retry_after=2,
            ) from error
        except _FAILURES as error:
            raise Unavailable(f"{self.where} failed: {_text(error)}", retry_after=2) from error

    def close(self) -> None:
        self._cluster.shutdown()


def _text(error: object) -> str:
    """What the driver says, in one line."""
    said = error.strerror if isinstance(error, OSError) else None
    return " ".join(str(said or error).split())


class _Prepared(NamedTuple):
    """A statement, the beginning of its encoding in a batch, and what Cassandra counts besides encoded values."""

    statement: PreparedStatement
    prefix: bytes
    overhead: int

    @classmethod
    def of(cls, statement: PreparedStatement) -> _Prepared:
        statement.is_idempotent = True
        count = len(statement.column_metadata)
        parts = (b"\x01", _count_of(len(statement.query_id)), statement.query_id, _count_of(count))
        return cls(statement, b"".join(parts), count * _VALUE_BYTES)


class _Partition(NamedTuple):
    """What the rows of a partition have in common: the beginning of their encoding, and where they are stored."""

    text: str
    values: Sequence[bytes | None]
    statement: PreparedStatement
    prefix: bytes
    overhead: int
    routing_key: bytes
    replicas: Any


class _Batch:
    """Encoded rows with the same replicas, and about how many bytes Cassandra counts for them."""

    def __init__(self, first: _Partition) -> None:
        self._first = first
        self.rows: list[bytes] = []
        self.size = 0

    def statement(self) -> BatchStatement:
        rows = BoundStatement(self._first.statement, routing_key=self._first.routing_key)
        rows.values = self.rows
        made = BatchStatement(BatchType.UNLOGGED)
        made.is_idempotent = True
        return made.add(rows)


class _EncodedRows(ProtocolHandler):  # type: ignore[misc]  # the driver has no types
    """Sends batches of encoded rows. The driver takes ten times as long to encode every value of every row."""

    @classmethod
    def encode_message(cls, msg: Any, *frame: Any, **more: Any) -> bytes:
        message = _EncodedBatch(msg) if isinstance(msg, BatchMessage) else msg
        return super().encode_message(message, *frame, **more)  # type: ignore[no-any-return]  # same


class _EncodedBatch(BatchMessage):  # type: ignore[misc]  # same
    def __init__(self, message: BatchMessage) -> None:
        self.__dict__.update(message.__dict__)
        ((_, _, self._rows),) = message.queries
        self.queries: list[Any] = []

    def send_body(self, f: Any, protocol_version: int) -> None:
        """Write the batch as if it had no rows, with the rows in their place."""
        body = io.BytesIO()
        super().send_body(body, protocol_version)
        without = body.getvalue()
        f.write(b"".join([without[:1], _count_of(len(self._rows)), *self._rows, without[3:]]))


class _Address(NamedTuple):
    hosts: list[tuple[str, int]]
    keyspace: str
    datacenter: str | None
    user: str | None
    password: str | None

    @classmethod
    def of(cls, url: str) -> _Address:
        """The parts of an address. It may contain a secret by mistake, so no error shows it."""
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        options = dict(parse_qsl(parts.query))
        datacenter = options.pop("datacenter", None)
        keyspace = parts.path.removeprefix("/")
        if parts.scheme != "cassandra" or not hosts or options or not _IDENTIFIER.fullmatch(keyspace):
            raise Invalid(f"the Cassandra address must look like {_EXAMPLE}; a keyspace is a name in lower case")
        secret = _secret(unquote(password)) if login else None
        return cls([_host(host) for host in hosts.split(",")], keyspace, datacenter, unquote(user) or None, secret)


def _host(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    if not host or not (port or str(_PORT)).isdigit():
        raise Invalid(f"the Cassandra address must look like {_EXAMPLE}")
    return host, int(port or _PORT)


def _secret(given: str) -> str:
    scheme, _, variable = given.partition(":")
    if scheme != "env":
        raise Invalid(f"give the Cassandra password by reference: {_EXAMPLE}")
    return from_environment("the Cassandra address", variable)


class _Connection(Cluster.connection_class):  # type: ignore[misc]  # the driver has no types
    """Sends a batch with one call; by default it takes one for every 4 KiB."""

    in_buffer_size = out_buffer_size = 64 << 10


def _cluster(address: _Address) -> Cluster:
    nearest = DCAwareRoundRobinPolicy(address.datacenter) if address.datacenter else DCAwareRoundRobinPolicy()
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(nearest),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=_ANSWER_SECONDS,
        row_factory=tuple_factory,
    )
    login = PlainTextAuthProvider(address.user, address.password) if address.user else None
    return Cluster(
        address.hosts,
        connection_class=_Connection,
        protocol_version=_PROTOCOL,
        auth_provider=login,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ExponentialReconnectionPolicy(0.2, 5.0),
        connect_timeout=_CONNECT_SECONDS,
        control_connection_timeout=_CONNECT_SECONDS,
        # Without this a batch of 50 rows and more waits 40 ms for an acknowledgement.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    )
