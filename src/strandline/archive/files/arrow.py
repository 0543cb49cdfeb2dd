"""Files on any other file system that pyarrow opens by a URL, such as Google Cloud Storage or Azure.

pyarrow has neither conditional writes nor a rename that fails if the target exists. A change by another process
between a check and the following write is not detected, so only one process may write at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from strandline.archive.files.port import Digest, FileEntry, Files, NewFile, checked, checked_no_data
from strandline.errors import Conflict, Forbidden, Invalid, NotFound, StrandlineError, Unavailable

_SECRETS = frozenset({"access_key", "secret_key", "session_token", "account_key", "sas_token", "sig"})


class ArrowFiles(Files):
    """Any URL that `pyarrow.fs.FileSystem.from_uri` accepts, without secrets."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        if parts.password or _SECRETS & dict(parse_qsl(parts.query)).keys():
            raise Invalid(f"a {parts.scheme} URL for files must contain no secret")
        try:
            self._system, root = pafs.FileSystem.from_uri(url)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise Invalid(f"pyarrow cannot open {parts.scheme} URLs for files: {error}") from error
        self._root = f"{root.rstrip('/')}/"

    def _at(self, path: str) -> str:
        return self._root + checked(path)

    def create(self, path: str) -> NewFile:
        if self.size(checked_no_data(path)) is not None:
            raise Conflict(f"{path} exists already")
        with _mapped(path):
            self._make_parent(path)
            return _ArrowFile(self._system, self._at(path))

    def _make_parent(self, path: str) -> None:
        self._system.create_dir(self._at(path).rpartition("/")[0], recursive=True)

    def _place(self, staged: str, target: str, digest: Digest) -> bool:
        if self.size(target) is not None or self.size(staged) != digest.size:
            return False
        with _mapped(target):
            self._make_parent(target)
            self._system.move(self._at(staged), self._at(target))
        return True

    def replace(self, path: str, data: bytes, expected: str | None) -> None:
        seen = self.look(checked_no_data(path))
        if seen is not None and seen.data == data:
            return
        if (seen and seen.version) != expected:
            raise Conflict(f"{path} has changed since it was read")
        folder, slash, name = path.rpartition("/")
        next_one = f"{folder}{slash}.{name}.{uuid.uuid4().hex}.next"  # readers must not see a part of it
        with self.create(next_one) as file:
            file.write(data)
        with _mapped(path):
            self._system.move(self._at(next_one), self._at(path))

    def open(self, path: str) -> pa.NativeFile:
        if self.size(path) is None:
            raise NotFound(f"{path} does not exist")
        with _mapped(path):
            return self._system.open_input_file(self._at(path))

    def entries(self, path: str = "") -> list[FileEntry]:
        folder = self._at(path) if path else self._root.rstrip("/")
        if path and self.size(path) is not None:
            return []
        with _mapped(path):
            listing = self._system.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        found = [
            FileEntry(item.base_name, item.size if item.type == pafs.FileType.File else None) for item in listing
        ]
        return sorted(found, key=lambda entry: entry.name)

    def size(self, path: str) -> int | None:
        with _mapped(path):
            info = self._system.get_file_info(self._at(path))
        size: int | None = info.size if info.type == pafs.FileType.File else None
        return size

    def modified_ms(self, path: str) -> int | None:
        with _mapped(path):
            found = self._system.get_file_info(self._at(path)).mtime_ns
        return None if found is None else found // 1_000_000

    def delete(self, path: str) -> None:
        with suppress(NotFound), _mapped(path):
            self._system.delete_file(self._at(path))

    def delete_tree(self, path: str) -> None:
        with suppress(NotFound), _mapped(path):
            self._system.delete_dir(self._at(path))

    def close(self) -> None:
        """Nothing to do: pyarrow closes connections itself."""


class _ArrowFile(NewFile):
    def __init__(self, system: pafs.FileSystem, path: str) -> None:
        super().__init__()
        self._system = system
        self._path = path
        self._file = system.open_output_stream(path)

    def _append(self, data: memoryview) -> None:
        with _mapped(self._path):
            self._file.write(data)

    def _finish(self) -> None:
        with _mapped(self._path):
            self._file.close()

    def _drop(self) -> None:
        with suppress(pa.ArrowException, OSError):
            self._file.close()
        with suppress(pa.ArrowException, OSError):
            self._system.delete_file(self._path)


@contextmanager
def _mapped(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{path}: {error}") from error
    except PermissionError as error:
        raise Forbidden(f"{path}: {error}") from error
    except (pa.ArrowException, OSError) as error:
        kind: type[StrandlineError] = Invalid if isinstance(error, pa.ArrowInvalid) else Unavailable
        raise kind(f"{path}: {error}") from error
