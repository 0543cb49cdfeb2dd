"""Files on HDFS. Durability after a power loss depends on HDFS: see `dfs.datanode.synconclose`."""

from __future__ import annotations

import time
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from strandline.archive.files.port import FileEntry, NewFile, checked, checked_no_data
from strandline.archive.files.renaming import RenamingFiles
from strandline.engine.hdfs import HdfsConnection
from strandline.errors import Invalid, NotFound, OutcomeUnknown, StrandlineError

# The driver may use a broken connection once more before it opens another one.
_RETRY_PAUSES_S = (0.0, 0.1)


class HdfsFiles(RenamingFiles):
    """`hdfs://host:port/path`, or `hdfs://nameservice/path` with Hadoop's configuration in `HADOOP_CONF_DIR`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
            raise Invalid("an HDFS URL must look like hdfs://host:8020/path or hdfs://nameservice/path")
        self._root = unquote(parts.path).rstrip("/")
        self._connection = HdfsConnection(f"hdfs://{parts.netloc}")

    def _at(self, path: str) -> str:
        return f"{self._root}/{checked(path)}"

    def create(self, path: str) -> NewFile:
        return _HdfsFile(self._connection, self._at(checked_no_data(path)))

    def _move(self, source: str, target: str, *, over: bool) -> None:
        start, end = self._at(source), self._at(target)
        try:
            self._rename(start, end, over=over)
        except NotFound:  # the source or the target's directory is missing
            self._connection.make_directories(end.rpartition("/")[0])
            self._rename(start, end, over=over)

    def _rename(self, start: str, end: str, *, over: bool) -> None:
        for pause_s in _RETRY_PAUSES_S:
            try:
                return self._connection.rename(start, end, over=over)
            except OutcomeUnknown:  # if the rename was done, the retry finds no source
                time.sleep(pause_s)
        return self._connection.rename(start, end, over=over)

    def open(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self._connection.open(self._at(path)), mode="r")

    def entries(self, path: str = "") -> list[FileEntry]:
        folder = self._at(path) if path else self._root or "/"
        found = [FileEntry(status.name, status.size) for status in self._connection.children(folder)]
        return sorted(found, key=lambda entry: entry.name)

    def size(self, path: str) -> int | None:
        status = self._connection.status(self._at(path))
        return None if status is None else status.size

    def modified_ms(self, path: str) -> int | None:
        status = self._connection.status(self._at(path))
        return None if status is None else status.modified_ms

    def delete(self, path: str) -> None:
        self._connection.delete(self._at(path))

    def delete_tree(self, path: str) -> None:
        self._connection.delete(self._at(path), tree=True)

    def close(self) -> None:
        self._connection.close()


class _HdfsFile(NewFile):
    def __init__(self, connection: HdfsConnection, path: str) -> None:
        super().__init__()
        self._connection = connection
        self._path = path
        self._file = connection.create(path)

    def _append(self, data: memoryview) -> None:
        self._file.write(data)

    def _finish(self) -> None:
        self._file.close()

    def _drop(self) -> None:
        with suppress(StrandlineError):
            self._connection.delete(self._path)
