"""SQLite through apsw: the only module that imports the driver.

Every database is opened in WAL mode with `synchronous=FULL`: a committed transaction survives a power failure.
Several processes of one machine write the same file, which SQLite before 3.51.3 can corrupt. So the version is
checked, and the library bundled with apsw is used instead of the one of the standard library.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import apsw

from strandline.engine import private
from strandline.engine.open_files import OPEN
from strandline.errors import Damaged, NotFound, OutcomeUnknown, StorageFull, StrandlineError, Unavailable

_OLDEST_SAFE = (3, 51, 3)
# Rarely needed: writers queue on a file lock before they take SQLite's own lock.
_BUSY_TIMEOUT_MS = 10_000
# Longer than most transactions of another thread of this process.
_MOMENT_MS = 5


def library_version() -> str:
    return apsw.sqlite_lib_version()


def check_library() -> None:
    """Unavailable if this SQLite can corrupt a WAL file that has several writers."""
    version = library_version()
    if tuple(int(part) for part in version.split(".")[:3]) < _OLDEST_SAFE:
        raise Unavailable(f"SQLite {version} is not safe with several writers; run pip install -U apsw")


class SqliteConnection:
    """One connection, used by one thread at a time (`with connection:` holds it), with mapped errors.

    `committed` is called after every transaction with the size of the WAL, and must start its checkpoints. Without
    it, SQLite checkpoints by itself.
    """

    def __init__(
        self,
        path: Path,
        *,
        create: bool = False,
        committed: Callable[[SqliteConnection, int], None] | None = None,
    ) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._version_queries = 0
        self._version: int | None = None
        #: The size of the WAL after the last commit of this connection.
        self.log_bytes = 0
        #: Whether the file was not writable. SQLite does not notice when that changes: connect again.
        self.read_only = False
        with ExitStack() as closing, self.mapped():
            closing.callback(OPEN.leave, OPEN.enter(path))
            self._connection = _connect(path, create=create)
            closing.callback(self._connection.close)
            self.read_only = self._connection.readonly("main")
            self._prepare(counts_log=committed is not None)
            self._transaction = WriteTransaction(self, self._connection, self._lock, self._map, committed)
            #: A number that changes with every commit of any connection, seen by transactions; costs no query.
            self.file_version: Callable[[], int] = self._connection.data_version
            self._closing = closing.pop_all()

    def _prepare(self, *, counts_log: bool) -> None:
        self._connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        # Otherwise SQLite compiles a statement again whenever its parameters change, which takes most of its time.
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._switch_to_wal()
        self.execute("PRAGMA synchronous = FULL")
        self.execute("PRAGMA foreign_keys = ON")
        self._page_bytes = int(self.execute("PRAGMA page_size")[0][0])
        if counts_log:
            self._connection.set_wal_hook(self._note_log)  # also turns off SQLite's automatic checkpoints

    def _note_log(self, _: apsw.Connection, __: str, pages: int) -> int:
        self.log_bytes = pages * self._page_bytes
        return apsw.SQLITE_OK

    def checkpoint(self, patience_ms: int = 0) -> bool:
        """Copy as much of the WAL into the file as possible. Returns whether all of it was copied.

        With `patience_ms` it waits for readers, so that the next commit restarts the WAL from its beginning.
        """
        mode = apsw.SQLITE_CHECKPOINT_RESTART if patience_ms else apsw.SQLITE_CHECKPOINT_PASSIVE
        with self._lock, self.mapped():
            self._connection.set_busy_timeout(patience_ms)
            try:
                pages, copied = self._connection.wal_checkpoint(mode=mode)
            except apsw.BusyError:  # another connection checkpoints, or a reader is still active
                return False
            finally:
                self._connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
            return pages == copied

    def _switch_to_wal(self) -> None:
        """Retry while another connection switches the same new file: SQLite's busy timeout does not apply here."""
        deadline = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
            else:
                return

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def mapped(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise self._map(error) from error

    def _map(self, error: apsw.Error) -> StrandlineError:
        """Our error for one of the driver's; raise it from the original."""
        where = self.path.name
        self.read_only |= isinstance(error, apsw.ReadOnlyError)
        if isinstance(error, apsw.FullError):
            return StorageFull(f"no space left for {where}; nothing was written: free some space and try again")
        if isinstance(error, apsw.ConnectionClosedError):
            return Unavailable(f"{where} is closed; open the platform again")
        if isinstance(error, (apsw.BusyError, apsw.LockedError)):
            return Unavailable(f"{where} is busy", retry_after=1)
        if isinstance(error, apsw.CorruptError):
            return Damaged(f"{where} is damaged: {error}; restore it from a backup")
        return Unavailable(f"{where} failed: {error}", retry_after=5)

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except apsw.Error as error:
                raise self._map(error) from error

    @contextmanager
    def rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Rows one by one, for reads that stop early; the read transaction ends with the block."""
        with self._lock, self.mapped():
            cursor = self._connection.cursor()
            try:
                yield cursor.execute(sql, values)
            finally:
                cursor.close(force=True)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any] | Mapping[str, Any]]) -> None:
        with self._lock:
            try:
                self._connection.executemany(sql, rows)
            except apsw.Error as error:
                raise self._map(error) from error

    def transaction(self) -> WriteTransaction:
        """One write transaction: all or nothing.

        An I/O error during the commit is `OutcomeUnknown`, because the frames may have reached the file. After
        any other error nothing was stored.
        """
        return self._transaction

    def data_version(self) -> int:
        """A number that changes when another connection has committed; costs microseconds.

        Concurrent threads share a query: its result is valid for every thread that called before it started.
        """
        before = self._version_queries
        with self._lock:
            if self._version_queries == before or self._version is None:
                self._version_queries, self._version = self._version_queries + 1, None
                ((self._version,),) = self.execute("PRAGMA data_version")
            return self._version

    def close(self) -> None:
        with self._lock:
            self._closing.close()


class WriteTransaction:
    """The write transactions of a connection. Not a generator, because publishers use one for every event."""

    def __init__(
        self,
        database: SqliteConnection,
        connection: apsw.Connection,
        lock: threading.RLock,
        map_error: Callable[[apsw.Error], StrandlineError],
        committed: Callable[[SqliteConnection, int], None] | None,
    ) -> None:
        self._database = database
        self._connection = connection
        self._lock = lock
        self._map = map_error
        self._committed = committed

    def __enter__(self) -> SqliteConnection:
        self._lock.acquire()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._lock.release()
            if isinstance(error, apsw.Error):
                raise self._map(error) from error
            raise
        return self._database

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                self._rollback()
                return
            try:
                self._connection.execute("COMMIT")
            except apsw.Error as error:
                self._rollback()
                raise self._after_commit(error) from error
            if self._committed is not None:
                self._committed(self._database, self._database.log_bytes)
        finally:
            self._lock.release()

    def _rollback(self) -> None:
        with suppress(apsw.Error):  # a lost connection has rolled back; the caller reports the first error
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _after_commit(self, error: apsw.Error) -> StrandlineError:
        if isinstance(error, apsw.IOError):
            return OutcomeUnknown(f"the commit to {self._database.path.name} may have failed: {error}")
        return self._map(error)


def _connect(path: Path, *, create: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    _share_permissions(path)
    try:
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=64)
    except apsw.CantOpenError as error:
        # A file that exists but cannot be opened (no descriptors, no permission) is not missing.
        if create or path.exists() or not path.parent.is_dir():
            raise
        raise NotFound(f"{path.name} does not exist") from error
    _protect(path)
    return connection


def _protect(path: Path) -> None:
    """Protect a new database, and one of an earlier release. SQLite gives the WAL the mode of the database."""
    with suppress(FileNotFoundError):  # deleted in the meantime
        if private.is_open_to_others(path):
            for file in (*_companions(path), path):
                private.protect(file)


def _share_permissions(path: Path) -> None:
    """Make the files beside a writable database writable.

    SQLite creates them with the permissions of the database, which may have been read-only at that time.
    """
    if os.access(path, os.W_OK):
        for beside in (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")):
            if beside.exists() and not os.access(beside, os.W_OK):
                with suppress(OSError):  # they belong to another user, and SQLite reports the error
                    beside.chmod(path.stat().st_mode)


class FileLock:
    """A lock between threads and processes, on a file; the system releases it when its holder dies.

    Fair enough that no writer starves, unlike SQLite's own busy handler. A holder that sleeps keeps the lock. One
    thread of every process then waits for it; the other threads get Unavailable after a timeout.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private.FILE)
        except OSError as error:
            raise Unavailable(f"{path.name} cannot be opened: {error.strerror}", retry_after=5) from error
        self._name = path.name
        # For the system, all threads with this descriptor are one holder.
        self._threads = threading.Lock()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, *, wait: bool = True) -> bool:
        """Whether the lock was acquired. Without `wait`, only if no thread or process holds it for long."""
        if not self._threads.acquire(timeout=(_BUSY_TIMEOUT_MS if wait else _MOMENT_MS) / 1000):
            if wait:
                raise Unavailable(f"{self._name} is held by another process for too long", retry_after=1)
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            self._threads.release()
            if isinstance(error, BlockingIOError):
                return False
            raise
        return True

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._threads.release()

    def close(self) -> None:
        with self._threads:
            os.close(self._descriptor)
            self._descriptor = -1  # the system may reuse the number for another file


def remove(path: Path) -> None:
    """Delete a database with its WAL and lock files. Idempotent."""
    # The database first: without its WAL it would be opened in an older state.
    for file in (path, *_companions(path)):
        file.unlink(missing_ok=True)


def _companions(path: Path) -> list[Path]:
    """The files that SQLite and we keep beside a database."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", ".lock")]
