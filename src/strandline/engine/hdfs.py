"""The HDFS client: every call has a timeout, and errors are mapped.

The only importer of the driver. The driver has no timeouts (and its asynchronous client crashes when it retries),
so each call runs in a thread of its own. Some releases of the driver repeat a call whose answer was lost, so a
caller that changes something must cope with a missing answer and with a call that is carried out twice.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from strandline.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    StorageFull,
    StrandlineError,
    Unavailable,
)

try:
    from hdfs_native import Client, FileReader, FileWriter, WriteOptions
except ImportError as cause:
    raise Unavailable("the HDFS driver is not installed; run pip install 'strandline[hdfs]'") from cause

_T = TypeVar("_T")

# A standby NameNode takes over within half a minute.
_ANSWER_SECONDS = 60.0
# Attempts to connect to a NameNode without a standby, after 0.5 s, 1 s and 2 s.
_ATTEMPTS = 3
# Writes are collected up to this size, because every call costs a thread.
_CHUNK_BYTES = 1 << 20

_EXCEPTION = re.compile(r'(?:Fatal)?RPCError\("(?:[\w.$]*\.)?([\w$]+)", "(.*)', re.DOTALL)
# Exceptions of the NameNode and our errors for them; all others are `Unavailable`.
_KINDS: dict[str, type[StrandlineError]] = {
    "AccessControlException": Forbidden,
    "AuthorizationException": Forbidden,
    "DSQuotaExceededException": StorageFull,
    "NSQuotaExceededException": StorageFull,
    "QuotaByStorageTypeExceededException": StorageFull,
    "InvalidPathException": Invalid,
    "ParentNotDirectoryException": Invalid,
    "PathIsNotDirectoryException": Invalid,
    "FSLimitException$PathComponentTooLongException": Invalid,
    "PathComponentTooLongException": Invalid,
}
# Errors after which certainly nothing was sent.
_NOT_SENT = ("Connection refused", "failed to lookup", "unreachable", "No route to host")


@dataclass(frozen=True)
class FileStatus:
    """`size` is None for a directory."""

    name: str
    size: int | None
    modified_ms: int


class HdfsConnection:
    """A NameNode, or a nameservice from Hadoop's configuration files. Thread-safe; do not fork with it open."""

    def __init__(self, address: str) -> None:
        self._where = address
        self._closed = False
        try:
            parts = urlsplit(address)
            alone = {"dfs.client.failover.max.attempts": str(_ATTEMPTS)} if parts.port else None
            self._client = Client(address, alone)
        except (RuntimeError, ValueError) as error:
            raise Invalid(f"{address} is not an HDFS address: {_text(error)}") from error

    def status(self, path: str) -> FileStatus | None:
        try:
            found = self.run(lambda: self._client.get_file_info(path))
        except NotFound:
            return None
        return FileStatus(_name(path), None if found.isdir else found.length, found.modification_time)

    def children(self, path: str) -> list[FileStatus]:
        """The entries of a directory; empty if the path does not exist."""
        try:
            found = self.run(lambda: list(self._client.list_status(path)))
        except NotFound:
            return []
        items = (item for item in found if item.path != path)
        return [
            FileStatus(_name(item.path), None if item.isdir else item.length, item.modification_time)
            for item in items
        ]

    def create(self, path: str) -> HdfsWriter:
        """Create a file and its parent directories. Conflict if the file exists."""
        options = WriteOptions(overwrite=False, create_parent=True)
        return HdfsWriter(self, self.run(lambda: self._client.create(path, options), changes=True))

    def open(self, path: str) -> HdfsReader:
        return HdfsReader(self, self.run(lambda: self._client.read(path)))

    def rename(self, source: str, target: str, *, over: bool) -> None:
        """Atomic. Conflict if the target exists, unless `over`; NotFound if the source does not exist."""
        self.run(lambda: self._client.rename(source, target, over), changes=True)

    def make_directories(self, path: str) -> None:
        self.run(lambda: self._client.mkdirs(path, create_parent=True), changes=True)

    def delete(self, path: str, *, tree: bool = False) -> None:
        """Delete a file, or with `tree` a directory; do nothing if the path does not exist."""
        self.run(lambda: self._client.delete(path, tree), changes=True)

    def run(self, call: Callable[[], _T], *, changes: bool = False) -> _T:
        """Run a call of the driver with a timeout of one minute and map its errors.

        `changes`: without an answer, raise OutcomeUnknown instead of Unavailable.
        """
        if self._closed:
            raise Unavailable(f"the connection to {self._where} is closed")
        answer: Future[_T] = Future()
        # Not a thread pool: a call that never returns would keep the process from exiting.
        threading.Thread(target=_fulfil, args=(answer, call), name="strandline-hdfs", daemon=True).start()
        try:
            return answer.result(_ANSWER_SECONDS)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._mapped(error, changes=changes) from error

    def _mapped(self, error: Exception, *, changes: bool) -> StrandlineError:
        text = _text(error)
        if isinstance(error, FileNotFoundError):
            return NotFound(text)
        if isinstance(error, FileExistsError):
            return Conflict(text)
        if match := _EXCEPTION.match(str(error)):
            kind = _KINDS.get(match[1], Unavailable)
            patience = {"retry_after": 5} if issubclass(kind, Unavailable) else {}
            return kind(f"HDFS at {self._where} refused: {text}", **patience)
        if changes and not any(sign in text for sign in _NOT_SENT):
            return OutcomeUnknown(f"HDFS at {self._where} did not answer: {text}")
        return Unavailable(f"HDFS at {self._where} cannot be reached: {text}", retry_after=5)

    def close(self) -> None:
        self._closed = True


class HdfsWriter:
    """A file that is being written; `close` completes it. Not thread-safe."""

    def __init__(self, connection: HdfsConnection, file: FileWriter) -> None:
        self._connection = connection
        self._file = file
        self._pending = bytearray()

    def write(self, data: memoryview) -> None:
        self._pending += data
        if len(self._pending) >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        chunk, self._pending = bytes(self._pending), bytearray()
        self._connection.run(lambda: self._file.write(chunk), changes=True)

    def close(self) -> None:
        if self._pending:
            self._flush()
        self._connection.run(self._file.close, changes=True)


class HdfsReader(io.RawIOBase):
    """A file for random reads by pyarrow."""

    def __init__(self, connection: HdfsConnection, file: FileReader) -> None:
        self._connection = connection
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._file.tell(), os.SEEK_END: len(self._file)}[whence]
        # The driver panics when it seeks past the end.
        self._file.seek(min(base + offset, len(self._file)))
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        return self._connection.run(lambda: self._file.read(-1 if size is None else size))


def _fulfil(answer: Future[_T], call: Callable[[], _T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - it is raised in the waiting thread
        answer.set_exception(error)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _text(error: Exception) -> str:
    """The driver's message without the stack trace of the NameNode."""
    if isinstance(error, TimeoutError):
        return f"no answer within {_ANSWER_SECONDS:.0f} s"
    match = _EXCEPTION.match(str(error))
    text = f"{match[1]}: {match[2]}" if match else str(error)
    return re.split(r"\\n|\n", text, maxsplit=1)[0].strip() or type(error).__name__
