"""The files port: what a file system must promise to hold an archive. Local directories, HDFS and S3 implement it.

Three kinds of file, each written in its own way:

    _staging/<run>/….part     `create`: written once by a task, under a unique name
    …/data/….parquet          `publish`: a staged file under its final name, atomic and permanent
    …/_READY                  `replace`: small, changed by compare-and-set
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from strandline import failpoints
from strandline.errors import Conflict, Invalid, NotFound, Unavailable

# Readers treat files with this ending as data.
_DATA = ".parquet"


def checked(path: str) -> str:
    """The path; Invalid if it could lead out of the root on any file system."""
    if "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise Invalid(f"{path!r:.100} is not a valid path: write names separated by /, without . and ..")
    return path


def checked_no_data(path: str) -> str:
    """The same for files that are not published; only `publish` may create data files."""
    if path.endswith(_DATA):
        raise Invalid(f"{path!r:.100}: a name that ends in {_DATA} must be published, not created")
    return checked(path)


@dataclass(frozen=True)
class Digest:
    """The size of a file in bytes and its SHA-256 in hex, as `sha256sum` prints it."""

    size: int
    sha256: str


@dataclass(frozen=True)
class FileEntry:
    """An entry of a directory: a name without a path. `size` is None for a directory."""

    name: str
    size: int | None


@dataclass(frozen=True)
class Seen:
    """A flag's content, and its version for `replace`. Equal contents may have equal versions."""

    data: bytes
    version: str


class NewFile(ABC):
    """A file that one thread writes; pyarrow accepts it as a writable Python file.

    The file exists and is durable when `close` returns; `digest` describes its content. An exception in the `with`
    block or `discard` removes it. If the process dies before `close`, a part of the file may be left.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._size = 0
        self.closed = False
        self._digest: Digest | None = None

    def write(self, data: bytes | bytearray | memoryview | pa.Buffer) -> int:
        view = memoryview(data).cast("B")
        self._append(view)
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        """Make the file durable. After an error it is discarded; after OutcomeUnknown it may exist."""
        if self.closed:
            return
        self.closed = True
        try:
            self._finish()
        except BaseException:
            self._drop()
            raise
        self._digest = Digest(self._size, self._hash.hexdigest())

    def discard(self) -> None:
        """Remove the file; does nothing after `close`."""
        if not self.closed:
            self.closed = True
            self._drop()

    @property
    def digest(self) -> Digest:
        if self._digest is None:
            raise Invalid("a file has no digest before it is closed")
        return self._digest

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:  # noqa: B027 - writers call it; there is nothing to do
        """Nothing is promised before `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    @abstractmethod
    def _append(self, data: memoryview) -> None:
        """Append bytes; the caller may reuse the memory afterwards."""

    @abstractmethod
    def _finish(self) -> None:
        """Return when the file is complete and durable at its path."""

    @abstractmethod
    def _drop(self) -> None:
        """Remove the file (best effort); raises nothing."""


class Files(ABC):
    """A tree of files below one URL. Thread-safe; it is pickled as its URL, which contains no secret.

    Paths are relative to the URL, with `/` between their parts; directories are created with their first file.
    Every call may also raise Unavailable (nothing was changed; retry after `retry_after`), StorageFull or
    Forbidden. A call that changes something may raise OutcomeUnknown: the change may have happened. All changes
    except `create` are idempotent.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __reduce__(self) -> tuple[type[Files], tuple[str]]:
        return type(self), (self.url,)

    @abstractmethod
    def create(self, path: str) -> NewFile:
        """Start a new file under a name that was never used before.

        Conflict, at the latest in `close`, if the file exists; the existing file is not changed. Invalid for names
        that end in `.parquet`, as with `replace`.
        """

    def publish(self, staged: str, target: str, digest: Digest) -> None:
        """Make a staged file appear at `target`, atomically. The target is never replaced.

        Idempotent, also after a crash at any moment and when several processes publish the same file: a target
        with the same content counts as done, whether or not the staged file still exists. Conflict if the target
        has other content, which is not changed, or if the size of the staged file differs from the digest.
        NotFound if neither file exists. The staged file may remain; delete staging when everything is published.
        """
        failpoints.hit("files.publish")
        with suppress(Conflict, NotFound):  # another process published it, or this one and the response was lost
            if self._place(staged, target, digest):
                return
        self._settle(staged, target, digest)

    @abstractmethod
    def _place(self, staged: str, target: str, digest: Digest) -> bool:
        """Make the staged file appear at `target`. If it cannot: False, Conflict or NotFound."""

    def look(self, path: str) -> Seen | None:
        """The current content and version of a small file, for `replace`; None if it does not exist."""
        try:
            data = self.read(path)
        except NotFound:
            return None
        return Seen(data, hashlib.sha256(data).hexdigest())

    @abstractmethod
    def replace(self, path: str, data: bytes, expected: str | None) -> None:
        """Durably write `data` to `path` if the file still has the version `expected`, as returned by `look`.

        With `expected` None the file must not exist. Otherwise Conflict, and nothing has changed. A file whose
        content is `data` already counts as done. Of several calls that expect the same version one succeeds. A
        process that was paused for any length of time gets Conflict when it continues, and overwrites nothing.
        Readers see the old or the new content at every moment, never a part. A crash leaves at most a hidden file
        (`.<name>.<id>.next`), which the next `replace` of the same path deletes.

        A version identifies a content, so a content must not be used twice: include a revision. Unavailable if
        other processes keep replacing the file. Conflict may also mean that `data` was written, the response was
        lost, and another process has replaced the file since.
        """

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """Open a published or staged file for random reads by pyarrow. NotFound if it does not exist."""

    @abstractmethod
    def entries(self, path: str = "") -> list[FileEntry]:
        """The entries of a directory, by name; empty if the directory does not exist.

        Includes everything that existed before the call and still exists after it, also hidden files of `replace`
        and directories that contain only unfinished writes of a dead process.
        """

    @abstractmethod
    def size(self, path: str) -> int | None:
        """The size of a file in bytes; None if it does not exist."""

    def modified_ms(self, path: str) -> int | None:  # noqa: ARG002 - not every file system tells it
        """When a file was written, by the clock of the file system; None if that or the file is not known."""
        return None

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file; a missing file is not an error. Not for flags that may be replaced at the same time."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """Delete a directory and its contents, one by one; a missing directory is not an error.

        Also deletes the storage of unfinished writes below it, as far as the file system lists them.
        """

    @abstractmethod
    def close(self) -> None:
        """Close connections."""

    def _settle(self, staged: str, target: str, digest: Digest) -> None:
        """The result of a `publish` that did not move the staged file: returns if the target has the content."""
        present = self._present(target)
        if present is None:
            size = self.size(staged)
            if size is None:
                raise NotFound(f"neither the staged file {staged} nor its target {target} exists")
            if size != digest.size:
                raise Conflict(f"{staged} has {size} bytes instead of the {digest.size} that were written")
            raise Unavailable(f"{staged} could not be published as {target}", retry_after=1)
        if present != digest:
            raise Conflict(f"{target} exists with different content")

    def _present(self, path: str) -> Digest | None:
        return None if self.size(path) is None else self.digest(path)

    def read(self, path: str) -> bytes:
        """The content of a file. NotFound if it does not exist."""
        with self.open(path) as file:
            content: bytes = file.read()
            return content

    def digest(self, path: str) -> Digest:
        """The digest of a file, which is read completely. NotFound if it does not exist."""
        content, size = hashlib.sha256(), 0
        with self.open(path) as file:
            while chunk := file.read(1 << 20):
                content.update(chunk)
                size += len(chunk)
        return Digest(size, content.hexdigest())
