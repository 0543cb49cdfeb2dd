"""SQLite through apsw: the only module that imports the driver.

Every database we open is WAL with `synchronous=FULL`: a committed transaction survives the loss of power.
Several processes of one machine write the same file, which releases before 3.51.3 can corrupt; hence the
version check and the bundled library instead of the standard one.
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

from strandline.engine.open_files import OPEN
from strandline.errors import NotFound, OutcomeUnknown, StorageFull, StrandlineError, Unavailable

_OLDEST_SAFE = (3, 51, 3)
# A backstop only: writers queue on a file lock before they ask SQLite for its own.
_BUSY_TIMEOUT_MS = 10_000


def library_version() -> str:
    return apsw.sqlite_lib_version()


def check_library() -> None:
    """Refuse a SQLite that can lose a WAL file under several writers."""
    version = library_version()
    if tuple(int(part) for part in version.split(".")[:3]) < _OLDEST_SAFE:
        raise Unavailable(f"SQLite {version} is not safe with several writers; pip install -U apsw")


def map_error(error: apsw.Error, path: Path) -> StrandlineError:
    """The driver's error as one of ours; it stays reachable as `__cause__`."""
    where = path.name
    if isinstance(error, apsw.FullError):
        return StorageFull(f"no room left for {where}; nothing was written: free some space and try again")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return Unavailable(f"{where} is busy", retry_after=1)
    return Unavailable(f"{where} failed: {error}", retry_after=5)


class SqliteConnection:
    """One connection, used by one thread at a time (`with database:` takes it), errors mapped.

    `committed` hears after every transaction how long SQLite's log is, and sees to it that it is copied into the
    file; without it SQLite does that itself.
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
        self._looks = 0
        self._version: int | None = None
        self._committed = committed
        self._log_bytes = 0
        with ExitStack() as closing, self.mapped():
            closing.callback(OPEN.leave, OPEN.enter(path))
            self._connection = _connect(path, create=create)
            closing.callback(self._connection.close)
            self._prepare()
            self._closing = closing.pop_all()

    def _prepare(self) -> None:
        self._connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        self._switch_to_wal()
        self.execute("PRAGMA synchronous = FULL")
        self.execute("PRAGMA foreign_keys = ON")
        self._page_bytes = int(self.execute("PRAGMA page_size")[0][0])
        if self._committed is not None:
            self._connection.set_wal_hook(self._note_log)  # also: SQLite does not copy it by itself

    def _note_log(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._log_bytes = pages * self._page_bytes
        return apsw.SQLITE_OK

    def checkpoint(self, patience_ms: int = 0) -> bool:
        """Copy as much of the log into the file as can be; whether all of it is there now.

        With patience it waits for readers, so that the next commit is sure to start the log anew.
        """
        mode = apsw.SQLITE_CHECKPOINT_RESTART if patience_ms else apsw.SQLITE_CHECKPOINT_PASSIVE
        with self._lock, self.mapped():
            self._connection.set_busy_timeout(patience_ms)
            try:
                pages, copied = self._connection.wal_checkpoint(mode=mode)
            except apsw.BusyError:  # somebody else is at it, or a reader stays
                return False
            finally:
                self._connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
            return pages == copied

    def _switch_to_wal(self) -> None:
        """Of several that open a new file at once one can switch; for this SQLite does not wait by itself."""
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
            raise map_error(error, self.path) from error

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except apsw.Error as error:
                raise map_error(error, self.path) from error

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
        with self._lock, self.mapped():
            self._connection.executemany(sql, rows)

    @contextmanager
    def transaction(self) -> Iterator[SqliteConnection]:
        """One write transaction: all or nothing.

        An I/O error while committing is `OutcomeUnknown`: the frames may have reached the file. Every other
        error means that nothing was stored.
        """
        with self._lock:
            self.execute("BEGIN IMMEDIATE")
            try:
                yield self
            except BaseException:
                self._rollback()
                raise
            self._commit()
            if self._committed is not None:
                self._committed(self, self._log_bytes)

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            self._rollback()
            if isinstance(error, apsw.IOError):
                raise OutcomeUnknown(f"the commit to {self.path.name} failed half-way: {error}") from error
            raise map_error(error, self.path) from error

    def _rollback(self) -> None:
        with suppress(apsw.Error):  # a connection that is gone has rolled back; the first error is the one to tell
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def data_version(self) -> int:
        """Changes whenever another connection has committed; costs microseconds.

        Of many threads that ask at once only some look: what was read since a thread came is true for it, too.
        """
        before = self._looks
        with self._lock:
            if self._looks == before or self._version is None:
                self._looks, self._version = self._looks + 1, None
                ((self._version,),) = self.execute("PRAGMA data_version")
            return self._version

    def close(self) -> None:
        with self._lock:
            self._closing.close()


def _connect(path: Path, *, create: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    try:
        return apsw.Connection(str(path), flags=flags, statementcachesize=64)
    except apsw.CantOpenError as error:
        # One that is there but cannot be opened (no descriptors, no permission) is not a missing one.
        if create or path.exists() or not path.parent.is_dir():
            raise
        raise NotFound(f"{path.name} does not exist") from error


class FileLock:
    """A lock between threads and processes, on a file; the system releases it when its holder dies.

    Fair enough that no writer starves, which SQLite's own busy handler is not. A holder that sleeps keeps it: one
    thread of every process waits for its end, the others are told after a while that it is busy.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"{path.name} cannot be opened: {error.strerror}", retry_after=5) from error
        self._name = path.name
        # To the system all threads with this descriptor are one holder.
        self._threads = threading.Lock()

    def __enter__(self) -> Self:
        if not self._threads.acquire(timeout=_BUSY_TIMEOUT_MS / 1000):
            raise Unavailable(f"{self._name} is held by another process that does not go on", retry_after=1)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._threads.release()

    def free(self) -> bool:
        """Whether nobody holds it at this moment."""
        if not self._threads.acquire(blocking=False):
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError:
            return False
        else:
            return True
        finally:
            self._threads.release()

    def close(self) -> None:
        with self._threads:
            os.close(self._descriptor)
            self._descriptor = -1  # the number may be another file's from now on


def make_directory(path: Path) -> None:
    """Have a directory for databases; one that is there is fine."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"the directory {path} cannot be made: {error.strerror}", retry_after=5) from error


def remove(path: Path) -> None:
    """Delete a database with everything SQLite and we keep beside it; a missing one is fine."""
    # The file first: opened without what is in its log it would look like an older one.
    for suffix in ("", "-wal", "-shm", ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
