"""How we talk to HDFS: every call has an end, and its errors are ours.

The only importer of the driver. The driver waits for an answer for ever, so each call runs in a thread of its
own and is waited for with a timeout. (Its asynchronous client dies when it has to try again.) Some of its
releases send a lost call once more, and the NameNode cannot tell the two apart: whoever changes something must
bear both, no answer and doing it twice.
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
    raise Unavailable("HDFS's driver is not installed here: pip install 'strandline[hdfs]'") from cause

_T = TypeVar("_T")

# A standby NameNode takes over within half a minute.
_ANSWER_SECONDS = 60.0
# How often a NameNode without a standby is looked for again, after 0.5 s, 1 s, 2 s.
_ATTEMPTS = 3
# A call costs a thread.
_CHUNK_BYTES = 1 << 20

_EXCEPTION = re.compile(r'(?:Fatal)?RPCError\("(?:[\w.$]*\.)?([\w$]+)", "(.*)', re.DOTALL)
# The NameNode's exceptions, by what they mean to us; any other is `Unavailable`.
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
# Before these nothing was sent.
_NOT_SENT = ("Connection refused", "failed to lookup", "unreachable", "No route to host")


@dataclass(frozen=True)
class Status:
    """`size` is None for a directory."""

    name: str
    size: int | None


class Connection:
    """A NameNode, or a nameservice that Hadoop's configuration files describe. Thread-safe, not to be forked."""

    def __init__(self, address: str) -> None:
        self._where = address
        self._closed = False
        try:
            parts = urlsplit(address)
            alone = {"dfs.client.failover.max.attempts": str(_ATTEMPTS)} if parts.port else None
            self._client = Client(address, alone)
        except (RuntimeError, ValueError) as error:
            raise Invalid(f"{address} is not an HDFS that can be found: {_text(error)}") from error

    def status(self, path: str) -> Status | None:
        try:
            found = self.run(lambda: self._client.get_file_info(path))
        except NotFound:
            return None
        return Status(_name(path), None if found.isdir else found.length)

    def children(self, path: str) -> list[Status]:
        """What is in a directory; a path that is none has none."""
        try:
            found = self.run(lambda: list(self._client.list_status(path)))
        except NotFound:
            return []
        return [
            Status(_name(item.path), None if item.isdir else item.length) for item in found if item.path != path
        ]

    def create(self, path: str) -> Writer:
        """A new file; directories come with it. Conflict if there is one."""
        options = WriteOptions(overwrite=False, create_parent=True)
        return Writer(self, self.run(lambda: self._client.create(path, options), changes=True))

    def open(self, path: str) -> Reader:
        return Reader(self, self.run(lambda: self._client.read(path)))

    def rename(self, source: str, target: str, *, over: bool) -> None:
        """One step of the NameNode. Conflict if there is a target and not `over`; NotFound without a source."""
        self.run(lambda: self._client.rename(source, target, over), changes=True)

    def make_directories(self, path: str) -> None:
        self.run(lambda: self._client.mkdirs(path, create_parent=True), changes=True)

    def delete(self, path: str, *, tree: bool = False) -> None:
        """A missing one is fine."""
        self.run(lambda: self._client.delete(path, tree), changes=True)

    def run(self, call: Callable[[], _T], *, changes: bool = False) -> _T:
        """The answer, within a minute, or one of our errors."""
        if self._closed:
            raise Unavailable(f"the connection to {self._where} is closed")
        answer: Future[_T] = Future()
        # One that never gets its answer must not keep the process from ending, as a pool's threads would.
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
            return kind(f"HDFS at {self._where} refused: {text}", **_patience(kind))
        if changes and not any(sign in text for sign in _NOT_SENT):
            return OutcomeUnknown(f"HDFS at {self._where} did not answer: {text}")
        return Unavailable(f"HDFS at {self._where} cannot be reached: {text}", retry_after=5)

    def close(self) -> None:
        self._closed = True


class Writer:
    """A file under construction; `close` completes it. For one thread."""

    def __init__(self, connection: Connection, file: FileWriter) -> None:
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


class Reader(io.RawIOBase):
    """Random reads for pyarrow."""

    def __init__(self, connection: Connection, file: FileReader) -> None:
        self._connection = connection
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._file.tell(), os.SEEK_END: len(self._file)}[whence]
        # The driver panics past the end.
        self._file.seek(min(base + offset, len(self._file)))
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        return self._connection.run(lambda: self._file.read(-1 if size is None else size))


def _fulfil(answer: Future[_T], call: Callable[[], _T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - whoever waits for the answer gets it
        answer.set_exception(error)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _text(error: Exception) -> str:
    """The driver's message without the NameNode's stack."""
    if isinstance(error, TimeoutError):
        return f"no answer within {_ANSWER_SECONDS:.0f} s"
    match = _EXCEPTION.match(str(error))
    text = f"{match[1]}: {match[2]}" if match else str(error)
    return re.split(r"\\n|\n", text, maxsplit=1)[0].strip() or type(error).__name__


def _patience(kind: type[StrandlineError]) -> dict[str, float]:
    return {"retry_after": 5} if issubclass(kind, Unavailable) else {}
