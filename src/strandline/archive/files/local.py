"""Files in a directory of this machine. `close`, `publish` and `replace` sync the file and its directory entry."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from strandline import failpoints
from strandline.archive.files.port import FileEntry, NewFile, checked, checked_no_data
from strandline.archive.files.renaming import RenamingFiles
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

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_KINDS: dict[int | None, type[StrandlineError]] = {
    errno.ENOENT: NotFound,
    errno.EEXIST: Conflict,
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    errno.EACCES: Forbidden,
    errno.EPERM: Forbidden,
    errno.EROFS: Forbidden,
    errno.EISDIR: Invalid,
    errno.ENOTDIR: Invalid,
    errno.ENAMETOOLONG: Invalid,
}


class LocalFiles(RenamingFiles):
    """A path or a `file://` URL. The file system must have hard links, which never replace an existing target."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "file" and parts.netloc not in {"", "localhost"}:
            raise Invalid(f"{url} contains a host; write a path of this machine as file:///path")
        path = unquote(parts.path) if parts.scheme == "file" else url
        self._root = Path(path).absolute()  # a worker may run in another directory
        super().__init__(str(self._root))

    def _at(self, path: str) -> Path:
        return self._root / checked(path)

    def create(self, path: str) -> NewFile:
        return _LocalFile(self._at(checked_no_data(path)))

    def _move(self, source: str, target: str, *, over: bool) -> None:
        start, end = self._at(source), self._at(target)
        with _mapped(target):
            if over:
                start.replace(end)
            else:
                _link(start, end)
        try:
            _sync(end.parent)
        except OSError as error:
            raise OutcomeUnknown(f"{target} may be lost in a power failure: {error.strerror}") from error
        if not over:
            failpoints.hit("files.linked")
            with _mapped(source):
                start.unlink(missing_ok=True)

    def open(self, path: str) -> pa.NativeFile:
        found = self._at(path)
        if found.is_dir():
            raise NotFound(f"{path} is a directory")
        with _mapped(path):
            return pa.OSFile(str(found), "rb")

    def entries(self, path: str = "") -> list[FileEntry]:
        folder = self._at(path) if path else self._root
        found = []
        with _mapped(path), suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as listing:
            for item in listing:
                with suppress(FileNotFoundError):  # deleted since it was listed
                    size = None if item.is_dir() else item.stat().st_size
                    found.append(FileEntry(item.name, size))
        return sorted(found, key=lambda entry: entry.name)

    def size(self, path: str) -> int | None:
        with _mapped(path):
            try:
                found = self._at(path)
                return None if found.is_dir() else found.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def modified_ms(self, path: str) -> int | None:
        with _mapped(path):
            return self._at(path).stat().st_mtime_ns // 1_000_000

    def delete(self, path: str) -> None:
        with _mapped(path), suppress(FileNotFoundError, NotADirectoryError):
            self._at(path).unlink()

    def delete_tree(self, path: str) -> None:
        with _mapped(path), suppress(FileNotFoundError):
            shutil.rmtree(self._at(path))

    def close(self) -> None:
        """Nothing to do: no file is kept open."""


class _LocalFile(NewFile):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with _mapped(path.name):
            _make_directories(path.parent)
            descriptor = os.open(path, _NEW, _mode_of(path.parent) & 0o666)
            self._file = os.fdopen(descriptor, "wb", buffering=1 << 20)

    def _append(self, data: memoryview) -> None:
        with _mapped(self._path.name):
            self._file.write(data)

    def _finish(self) -> None:
        with _mapped(self._path.name):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            _sync(self._path.parent)

    def _drop(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):  # closing tries to write the buffer again
            self._file.close()


@contextmanager
def _mapped(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = _KINDS.get(error.errno, Unavailable)
        patience = {"retry_after": 5} if kind is Unavailable else {}
        raise kind(f"{path}: {error.strerror or error}", **patience) from error


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        if not source.exists():
            raise
        _make_directories(target.parent)
        target.hardlink_to(source)


def _make_directories(path: Path) -> None:
    """Like `mkdir -p`, with durable directory entries."""
    if path.is_dir():
        return
    _make_directories(path.parent)
    with suppress(FileExistsError):
        path.mkdir(_mode_of(path.parent))
    _sync(path.parent)


def _mode_of(folder: Path) -> int:
    """What is created in a directory has its mode, so that files in a private directory are private as well."""
    return folder.stat().st_mode & 0o777


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
