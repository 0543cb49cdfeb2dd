"""The files port: what a place for the archive's files promises. Local directories, HDFS and S3 fill it.

Three kinds of file, each with its own way in:

    _staging/<run>/….part     `create`: written once by a task, under a name that nobody else uses
    …/data/….parquet          `publish`: a staged file under its final name, whole or not at all, for good
    …/_READY                  `replace`: small, read by everybody, changed by compare-and-set
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from strandline.errors import Conflict, Invalid, NotFound, Unavailable

# Names that readers take for data.
_DATA = ".parquet"


def checked(path: str) -> str:
    """The path, if it is one that stays below the URL everywhere; else Invalid."""
    if "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise Invalid(f"{path!r:.100} is not a path of a file: parts with / between them, no . and no ..")
    return path


def checked_no_data(path: str) -> str:
    """The same for files that are not published; only `publish` makes what readers take for data."""
    if path.endswith(_DATA):
        raise Invalid(f"{path!r:.100}: a name that ends in {_DATA} can only be published")
    return checked(path)


@dataclass(frozen=True)
class Digest:
    """What a file holds: how many bytes, and their SHA-256 in hex (what `sha256sum` prints)."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """What a directory lists: a name without a path. `size` is None for a directory."""

    name: str
    size: int | None


@dataclass(frozen=True)
class Seen:
    """A flag's content, and the version by which `replace` recognises it. Equal contents may be equal versions."""

    data: bytes
    version: str


class NewFile(ABC):
    """A file that is being written, by one thread; anything that writes to a Python file can write to it.

    It is there when `close` returns, and then survives a crash; `digest` says what was written. Left by an
    exception, or discarded, it is gone. Never closed, because its process died, it may be there in part.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._size = 0
        self._closed = False
        self._digest: Digest | None = None

    def write(self, data: bytes | bytearray | memoryview | pa.Buffer) -> int:
        view = memoryview(data).cast("B")
        self._append(view)
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        """Make it durable. After an error it is discarded; with OutcomeUnknown it may be there."""
        if self._closed:
            return
        self._closed = True
        try:
            self._finish()
        except BaseException:
            self._drop()
            raise
        self._digest = Digest(self._size, self._hash.hexdigest())

    def discard(self) -> None:
        """Forget what was written; after `close` this does nothing."""
        if not self._closed:
            self._closed = True
            self._drop()

    @property
    def digest(self) -> Digest:
        if self._digest is None:
            raise Invalid("a file has no digest before it is closed")
        return self._digest

    @property
    def closed(self) -> bool:
        return self._closed

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:  # noqa: B027 - writers expect it, and there is nothing to do
        """Nothing is promised before `close`."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    @abstractmethod
    def _append(self, data: memoryview) -> None:
        """Take the next bytes; the caller may use the memory again afterwards."""

    @abstractmethod
    def _finish(self) -> None:
        """Return when the file is whole and durable at its path."""

    @abstractmethod
    def _drop(self) -> None:
        """Remove what there is of it, as far as possible; raises nothing."""


class Files(ABC):
    """A tree of files below one URL. Thread-safe; a pickle of it is its URL, which holds no secret.

    Paths are relative to the URL, with `/` between their parts; directories come with their first file. Every
    call may also raise Unavailable (nothing was changed; try again after `retry_after`), StorageFull, Forbidden,
    or, if it changes something, OutcomeUnknown: it may have happened. All changes but `create` can be repeated.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __reduce__(self) -> tuple[type[Files], tuple[str]]:
        return type(self), (self.url,)

    @abstractmethod
    def create(self, path: str) -> NewFile:
        """Start a file under a name that was never used before.

        Conflict, at the latest when it is closed, if there is a file already, which stays as it is. Invalid for
        names that end in `.parquet`, as with `replace`.
        """

    @abstractmethod
    def publish(self, staged: str, target: str, digest: Digest) -> None:
        """Let a staged file appear at `target`: no reader ever finds a part of it there, and it is never replaced.

        A target that holds the same content counts as done, whoever put it there and whatever became of the
        staged file; one that holds another content is Conflict and stays. So publishing again is harmless, after
        a crash at any moment and for several at once. Conflict as well if the staged file has not the size it
        was written with, NotFound if there is neither of the two. The staged file may stay: clear staging when all
        is published.
        """

    @abstractmethod
    def look(self, path: str) -> Seen | None:
        """A small file as it is now, whole, for `replace`; None if there is none."""

    @abstractmethod
    def replace(self, path: str, data: bytes, expected: str | None) -> None:
        """Put `data` at `path` if the file there still has the version `expected`, which `look` gave; durably.

        None: there must be no file. Otherwise Conflict, and nothing has changed. A file that holds just `data`
        already counts as done. Of several that expect the same version one comes through; a process that slept
        in between, for however long, gets Conflict when it wakes and overwrites nothing. Readers find the old
        content or the new one, whole, at every moment; also after a crash, which leaves at most a hidden file
        (`.<name>.<id>.next`) that the next `replace` of the same path clears away.

        Versions stand for contents, so contents must not come back: count a revision in them. Unavailable if
        others keep coming in between. Conflict may also mean that `data` was there, its answer got lost on the
        way, and somebody has replaced it since.
        """

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """A published or staged file for random reads, as pyarrow's readers want it. NotFound if there is none."""

    @abstractmethod
    def entries(self, path: str = "") -> list[Entry]:
        """What is directly in a directory, by name; nothing if there is no such directory.

        Everything that was there before the call and still is after it; hidden files of `replace` too, and
        directories that hold no more than what a dead process began to write.
        """

    @abstractmethod
    def size(self, path: str) -> int | None:
        """How many bytes a file has; None if there is no file."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file; a missing one is fine. Not for flags that others may replace at the same time."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, one by one; a missing one is fine.

        Also what unfinished writes below it hold on to, as far as the file system shows it.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    def _settle(self, staged: str, target: str, digest: Digest) -> None:
        """The end of a `publish` that could not put the staged file there."""
        present = self._present(target)
        if present is None:
            size = self.size(staged)
            if size is None:
                raise NotFound(f"there is neither {staged} nor {target}")
            if size != digest.size:
                raise Conflict(f"{staged} is not what was written there")
            raise Unavailable(f"{staged} could not be published as {target}", retry_after=1)
        if present != digest:
            raise Conflict(f"{target} is there with another content")

    def _present(self, path: str) -> Digest | None:
        return None if self.size(path) is None else self.digest(path)

    def read(self, path: str) -> bytes:
        """A whole file. NotFound if there is none."""
        with self.open(path) as file:
            content: bytes = file.read()
            return content

    def digest(self, path: str) -> Digest:
        """What a file holds, read through from end to end. NotFound if there is none."""
        content, size = hashlib.sha256(), 0
        with self.open(path) as file:
            while chunk := file.read(1 << 20):
                content.update(chunk)
                size += len(chunk)
        return Digest(size, content.hexdigest())
