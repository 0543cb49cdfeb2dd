"""The PostgreSQL client: a connection pool, transactions that can be retried, and error mapping.

The only importer of the driver. Every call ends, even if the server does not answer: connections, statements,
locks and answers have timeouts. If a connection is lost before COMMIT was sent, the work is retried once. If it is
lost after that, the outcome is unknown. A password is given as `env:NAME` and never shown.
"""

from __future__ import annotations

import logging
import random
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

from strandline.config import from_environment
from strandline.engine.database import Database, Rows, Session, Signals, Values
from strandline.engine.sql import Dialect
from strandline.errors import Invalid, OutcomeUnknown, StorageFull, StrandlineError, Unavailable

try:
    import psycopg
    import psycopg.sql
    import psycopg_pool
    from psycopg import conninfo
    from psycopg import errors as pg_errors
    from psycopg.abc import PQGen
    from psycopg.adapt import PyFormat, Transformer
    from psycopg.generators import execute
    from psycopg.types.string import BytesBinaryDumper
except ImportError as cause:
    raise Unavailable("the PostgreSQL driver is not installed; run pip install 'strandline[postgres]'") from cause

_T = TypeVar("_T")

# The caller that needs a connection gets the error, so the pool need not log it.
logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)

_CONNECTIONS = 8
_SNAPSHOTS = 16
_ATTEMPTS = 4
_CONNECT_SECONDS = 5
# How long a call waits for a connection, and then for an answer; the server's own timeouts are shorter.
_POOL_SECONDS = 3.0
_ANSWER_SECONDS = 10.0
_SETTINGS = {
    "statement_timeout": 8_000,
    "lock_timeout": 7_000,
    # A node that sleeps inside a transaction blocks others for this time, which is less than `lock_timeout`.
    "idle_in_transaction_session_timeout": 5_000,
    "search_path": "strandline",
}
# For statements that are planned once for all sizes of tables: every join is a loop with index lookups.
_FIXED_PLANS = {
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"),
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
# A reader of a snapshot may be slow. The transaction blocks nobody, but keeps old rows from being removed.
_SNAPSHOT = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 60000"
)
_NOW = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_NONE: Values = {}
_PLACE = re.compile(r"%(?:%|\((\w+)\)s)")
_COPY = re.compile(r"COPY (\w+) \(([^)]*)\)\s+FROM STDIN.*", re.DOTALL)
# The address must not set these: our guarantees depend on them.
_OURS = frozenset({"options", "client_encoding", "application_name", "fallback_application_name"})
_SECRETS = frozenset({"password", "sslpassword"})
# Turns `synchronous_commit` on for our connections if it is off; other values are kept.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)

# A connection keeps this many prepared statements, those that were used last.
_MOST_PREPARED = 200
_NOTIFY = "SELECT pg_notify(%(channel)s, %(text)s)"
# A signal is lost in a crash of the server anyway, so that its commit need not wait for the disk.
_NOT_DURABLE = "SET synchronous_commit = off"

_FULL = "53100"
# Somebody else has removed the prepared statements, or changed the tables that they use.
_STALE_STATEMENTS = frozenset({"26000", "0A000"})
# Serialization failure and deadlock: a retry can succeed.
_COLLISIONS = frozenset({"40001", "40P01"})
# The connection is unusable: lost, idle for too long, or its server stops, starts or has become a replica.
_LOST = ("08", "57P", "25006", "25P03")


class _NoAnswer(psycopg.OperationalError):
    """The server did not answer in time."""


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._transformer = Transformer(self)
        # By text and types of the parameters.
        self._names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._named = 0

    def run(self, statement: str, values: Values = _NONE, *, binary: bool = False) -> Rows:
        """Run a statement and fetch its rows. `execute` needs three times as much processor time.

        Without values there may be several statements, and the rows are those of the last one.
        """
        if not values:
            self.pgconn.send_query(statement.encode())
        else:
            query, names = _positional(statement)
            given = [_array(value) if isinstance(value := values[name], list) else value for name in names]
            dumped = self._transformer.dump_sequence(given, [PyFormat.AUTO] * len(given))
            name, formats = self._prepare(query), self._transformer.formats
            self.pgconn.send_query_prepared(name, dumped, formats, int(binary))
        result = self._results()[-1]
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        self._transformer.set_pgresult(None)  # its memory
        return rows

    def _prepare(self, query: bytes) -> bytes:
        key = query, self._transformer.types or ()
        name = self._names.pop(key, None)
        if name is None:
            if len(self._names) >= _MOST_PREPARED:
                oldest = self._names.pop(next(iter(self._names)))
                self.pgconn.send_query(b"DEALLOCATE " + oldest)
                self._results()
            self._named += 1
            name = b"strandline_%d" % self._named
            self.pgconn.send_prepare(name, query, key[1])
            self._results()
        self._names[key] = name
        return name

    def _results(self) -> list[Any]:
        results: list[Any] = self.wait(execute(self.pgconn))
        for result in results:
            if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
                error = pg_errors.error_from_result(result)
                if error.sqlstate in _STALE_STATEMENTS:  # they are prepared again under new names
                    self._names.clear()
                raise error
        return results

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        """Wait with a timeout; without one, the driver waits indefinitely for a server that does not answer."""
        try:
            return super().wait(gen, interval, timeout or _ANSWER_SECONDS)
        except psycopg.OperationalError as error:
            if self.pgconn.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # a late answer must not be taken for the answer to the next statement
            raise _NoAnswer(f"no answer within {_ANSWER_SECONDS:.0f} seconds") from error


_Pool: TypeAlias = "psycopg_pool.ConnectionPool[_Connection]"


class PostgresSession(Session):
    """`binary` results take less time if there are many rows."""

    def __init__(self, connection: _Connection, *, binary: bool = False) -> None:
        self._connection = connection
        self._binary = binary

    def execute(self, statement: str, values: Values = _NONE) -> Rows:
        return self._connection.run(statement, values, binary=self._binary)

    def execute_many(self, statement: str, rows: Sequence[Values]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.encode(), rows)

    def load(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            table = _COPY.sub(r"SELECT \2 FROM \1 LIMIT 0", statement).encode()
            types = [column.type_code for column in cursor.execute(table).description or ()]
            # Otherwise the driver chooses its dumper for `Binary`, which is slow.
            cursor.adapters.register_dumper(bytes, BytesBinaryDumper)
            with cursor.copy(statement.encode()) as copy:
                copy.set_types(types)
                for row in rows:
                    copy.write_row(row)

    def execute_each(self, statement: str, common: Values, columns: Sequence[str], rows: Sequence[Any]) -> None:
        lists = map(list, zip(*rows, strict=True))
        self.execute(statement, {**common, **dict(zip(columns, lists, strict=True))})


class PostgresSignals(Signals):
    """NOTIFY and LISTEN. `connect` opens a connection and maps errors."""

    def __init__(self, connect: Callable[[], _Connection], channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._sender: _Connection | None = None
        self._receiver: _Connection | None = None
        self._woken, self._waker = socket.socketpair()

    def send(self, text: str) -> None:
        try:
            if self._sender is None:
                self._sender = self._connect()
                self._sender.run(_NOT_DURABLE)
            self._sender.run(_NOTIFY, {"channel": self._channel, "text": text})
        except psycopg.Error as error:
            if self._sender is not None:
                self._sender.close()
                self._sender = None
            raise Unavailable(f"the signal was not sent: {_text(error)}") from error

    def receive(self, seconds: float) -> list[str]:
        try:
            if self._receiver is None:
                self._receiver = self._connect()
                self._receiver.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(self._channel)))
            server = self._receiver.pgconn
            self._wait(server.socket, seconds)
            server.consume_input()
            return [found.extra.decode() for found in iter(server.notifies, None)]
        except psycopg.Error as error:
            if self._receiver is not None:
                self._receiver.close()
                self._receiver = None
            raise Unavailable(f"signals cannot be received: {_text(error)}") from error

    def _wait(self, server: int, seconds: float) -> None:
        # Not `select`, which refuses the file descriptors of a process that has more than 1,024 of them open.
        with selectors.DefaultSelector() as selector:
            for readable in (server, self._woken.fileno()):
                selector.register(readable, selectors.EVENT_READ)
            selector.select(seconds)

    def interrupt(self) -> None:
        self._waker.close()

    def close(self) -> None:
        self._woken.close()
        for connection in (self._sender, self._receiver):
            if connection is not None:
                connection.close()


class PostgresDatabase(Database):
    """The schema `strandline` in a database that processes on several machines share."""

    dialect: Dialect = "postgres"
    shared = True
    boot = ""

    def __init__(self, url: str, *, fixed_plans: bool = False) -> None:
        """Invalid if the address cannot be used, Unavailable if no server answers there.

        `fixed_plans` is for a room whose statements find all rows through indexes: the statistics of its tables
        are often outdated, and a plan that reads a whole table would be slower by orders of magnitude.
        """
        self._parameters = _parameters(url, {**_SETTINGS, **_FIXED_PLANS} if fixed_plans else _SETTINGS)
        self._host = _where(self._parameters)
        self.where = f"PostgreSQL at {self._host}"
        self._check()
        self._pool = self._new_pool(min_size=1, max_size=_CONNECTIONS, open=True)
        # Snapshots have their own connections, because a slow reader holds one for long.
        check = psycopg_pool.ConnectionPool.check_connection
        self._snapshots = self._new_pool(min_size=0, max_size=_SNAPSHOTS, open=False, check=check)

    def _new_pool(self, **options: Any) -> _Pool:
        return psycopg_pool.ConnectionPool(
            kwargs=self._parameters,
            connection_class=_Connection,
            configure=_configure,
            timeout=_POOL_SECONDS,
            # No retries in the background, whose interval grows: the next caller triggers the next attempt.
            reconnect_timeout=0,
            **options,
        )

    def _connect(self) -> _Connection:
        with self._mapped():
            connection = _Connection.connect(**self._parameters)
            _configure(connection)
            return connection

    def _check(self) -> None:
        with closing(self._connect()) as connection, self._mapped():
            ((encoding,),) = connection.run("SELECT current_setting('server_encoding')")
        if encoding != "UTF8":
            raise Unavailable(f"the database has the encoding {encoding}; create one with ENCODING 'UTF8'")

    def fetch(self, statement: str, values: Values) -> Rows:
        return self._run(lambda connection: PostgresSession(connection).execute(statement, values))

    def change(self, statement: str, values: Values) -> Rows:
        return self._run(lambda connection: self._change(connection, statement, values))

    def transaction(self, work: Callable[[Session], _T]) -> _T:
        return self._run(lambda connection: self._transact(connection, work))

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        with self._mapped():
            self._snapshots.open()
            with self._borrowed(self._snapshots) as connection:
                connection.run(_SNAPSHOT)
                try:
                    yield PostgresSession(connection, binary=True)
                finally:
                    with suppress(psycopg.Error):  # a lost connection has rolled back
                        connection.run("ROLLBACK")

    def data_version(self) -> None:
        return None

    def signals(self, channel: str) -> PostgresSignals:
        return PostgresSignals(self._connect, channel)

    def lease_ms(self, session: Session | None = None) -> int | None:
        return None if session is None else int(session.execute(_NOW)[0][0])

    def _change(self, connection: _Connection, statement: str, values: Values) -> Rows:
        # Fails if the connection was lost while idle: nothing was sent. First comes the server's last message.
        for _ in range(2):
            connection.pgconn.consume_input()
        try:
            return PostgresSession(connection).execute(statement, values)
        except psycopg.Error as error:
            if _lost(connection, error):
                raise OutcomeUnknown(f"{self.where} did not confirm the change: {_text(error)}") from error
            raise

    def _transact(self, connection: _Connection, work: Callable[[Session], _T]) -> _T:
        connection.run("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            result = work(PostgresSession(connection))
        except BaseException:
            with suppress(psycopg.Error):  # a lost connection has rolled back
                connection.run("ROLLBACK")
            raise
        try:
            connection.run("COMMIT")
        except psycopg.Error as error:
            if _lost(connection, error):
                raise OutcomeUnknown(f"{self.where} did not confirm the commit: {_text(error)}") from error
            raise
        return result

    def _run(self, call: Callable[[_Connection], _T]) -> _T:
        attempt = 0
        while True:
            attempt += 1
            with self._mapped(), self._borrowed(self._pool) as connection:
                try:
                    return call(connection)
                except psycopg.Error as error:
                    if attempt == _ATTEMPTS or not self._can_retry(connection, error, attempt):
                        raise
            time.sleep(random.uniform(0, 0.02) * attempt)  # noqa: S311 - jitter against another collision

    def _can_retry(self, connection: _Connection, error: psycopg.Error, attempt: int) -> bool:
        if not _lost(connection, error):
            return error.sqlstate in _COLLISIONS | _STALE_STATEMENTS
        connection.close()
        if attempt > 1 or isinstance(error, _NoAnswer):
            return False
        self._pool.drain()  # the other connections are probably lost as well
        return True

    @contextmanager
    def _borrowed(self, pool: _Pool) -> Iterator[_Connection]:
        try:
            connection = pool.getconn()
        except psycopg_pool.PoolClosed as error:
            raise Unavailable("the connections to PostgreSQL are closed") from error
        except psycopg_pool.PoolTimeout as error:
            self._connect().close()  # raises the reason if the server accepts no connection
            raise Unavailable(f"all connections to {self.where} are busy", retry_after=1) from error
        try:
            yield connection
        finally:
            pool.putconn(connection)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._map(error, _text(error)) from error

    def _map(self, error: psycopg.Error, text: str) -> StrandlineError:
        state = error.sqlstate or ""
        if state == _FULL:
            return StorageFull(f"{self.where} has no space left; nothing was written: {text}")
        if isinstance(error, psycopg.OperationalError) and (not state or state.startswith(_LOST)):
            return Unavailable(f"PostgreSQL cannot be reached at {self._host}: {text}", retry_after=2)
        if state in _COLLISIONS or state in {"55P03", "57014"}:
            return Unavailable(f"{self.where} is busy: {text}", retry_after=1)
        return Unavailable(f"{self.where} failed: {text}", retry_after=5)

    def close(self) -> None:
        self._pool.close()
        self._snapshots.close()


@lru_cache(maxsize=1000)
def _positional(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement with numbers as the names of its parameters, and their names in that order."""
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return "%" if match[1] is None else f"${numbers.setdefault(match[1], len(numbers) + 1)}"

    return _PLACE.sub(numbered, statement).encode(), (*numbers,)


def _array(items: list[Any]) -> str:
    """A list of numbers, booleans, texts or bytes as PostgreSQL writes an array; the statement names the type.

    The driver's own dumper needs ten times as long, which would be a quarter of the time of a batch.
    """
    for first in items:
        if first is not None:
            break
    else:
        return f"{{{','.join(['NULL'] * len(items))}}}"
    if isinstance(first, str):
        text = _texts(items)
    elif isinstance(first, (bytes, bytearray, memoryview)):
        text = ",".join(["NULL" if item is None else f'"\\\\x{item.hex()}"' for item in items])
    else:
        text = str(items)[1:-1].replace("None", "NULL")
    return f"{{{text}}}"


def _texts(items: list[str | None]) -> str:
    if None in items:
        return ",".join(["NULL" if item is None else _texts([item]) for item in items])
    text = '","'.join(cast("list[str]", items))
    if "\0" in text:
        raise psycopg.DataError("a text must not contain a zero byte")
    if "\\" in text or text.count('"') != 2 * len(items) - 2:
        escaped = [item.replace("\\", "\\\\").replace('"', '\\"') for item in cast("list[str]", items)]
        text = '","'.join(escaped)
    return f'"{text}"'


def _configure(connection: _Connection) -> None:
    connection.run(_DURABLE)


def _lost(connection: _Connection, error: psycopg.Error) -> bool:
    return connection.closed or (error.sqlstate or "").startswith(_LOST)


def _text(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


def _parameters(url: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """The driver's connection parameters. The address may contain a secret by mistake, so no error shows it."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        given = {}
    # With a slash in the password, the user is parsed as the host, the password as the port, the rest as the name.
    clear = "@" not in str(given.get("dbname", "@")) and not str(given.get("port", "")).strip("0123456789,")
    if not url.startswith(("postgresql://", "postgres://")) or not clear:
        raise Invalid("the PostgreSQL address must look like postgresql://user@host:5432/database")
    if bad := sorted(_OURS & given.keys()):
        raise Invalid(f"{bad[0]!r} in the PostgreSQL address is set by Strandline; remove it")
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return {
        # With several hosts, use the one that accepts writes; replicas may lag behind.
        "target_session_attrs": "read-write",
        "connect_timeout": _CONNECT_SECONDS,
        "tcp_user_timeout": int(_ANSWER_SECONDS * 1000),
        **given,
        **{name: _secret(given[name]) for name in _SECRETS & given.keys()},
        "options": options,
        "application_name": "strandline",
        "autocommit": True,
    }


def _secret(given: Any) -> str:
    scheme, _, variable = str(given).partition(":")
    if scheme != "env":
        raise Invalid("give the PostgreSQL password by reference: postgresql://user:env:NAME@host:5432/database")
    return from_environment("the PostgreSQL address", variable)


def _where(parameters: dict[str, Any]) -> str:
    hosts = str(parameters.get("host", "localhost")).split(",")
    ports = str(parameters.get("port", "")).split(",")
    pairs = zip(hosts, ports * len(hosts), strict=False)
    return ",".join(f"{host}:{port or 5432}" for host, port in pairs)
