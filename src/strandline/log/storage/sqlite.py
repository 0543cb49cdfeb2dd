"""The embedded storage: a directory with one SQLite file per topic."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from strandline.engine import sqlite
from strandline.errors import NotFound, StrandlineError, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage.port import Bounds, Placed, Storage
from strandline.log.storage.topic_file import TopicFile
from strandline.log.storage.watcher import Watcher

_WRITERS = 8


class SqliteStorage(Storage):
    """Several processes may use the same directory at once."""

    def __init__(self, directory: Path, *, poll_interval_ms: int = 25, max_open_topics: int = 256) -> None:
        sqlite.check_library()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._max_open = max_open_topics
        self._executor = ThreadPoolExecutor(_WRITERS, thread_name_prefix="strandline-writer")
        self._watcher = Watcher(self._data_version, poll_interval_ms / 1000)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, TopicFile] = OrderedDict()
        self._users: dict[str, int] = {}
        self._deleted: dict[str, TopicFile] = {}  # closed when their last user lets go
        self._closed = False

    def create_topic(self, topic: str, partitions: int, retention_ms: int) -> None:  # noqa: ARG002 - we are purged
        TopicFile.create(self._path(topic), partitions)

    def delete_topic(self, topic: str) -> None:
        with self._lock:
            file = self._open.pop(topic, None)
            if file is not None and topic in self._users:
                self._deleted[topic] = file
            elif file is not None:
                file.close()
        sqlite.remove(self._path(topic))
        self._watcher.notify(topic)

    def append(self, topic: str, batches: Mapping[int, NewRecords]) -> Future[dict[int, Placed]]:
        try:
            file = self._acquire(topic)
        except StrandlineError as error:
            failed: Future[dict[int, Placed]] = Future()
            failed.set_exception(error)
            return failed
        future = file.append(batches)
        future.add_done_callback(lambda _: self._appended(topic))
        return future

    def _appended(self, topic: str) -> None:
        self._release(topic)
        self._watcher.notify(topic)

    def read(self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch:
        with self._file(topic) as file:
            return file.read(partition, offset, max_records, max_bytes)

    def bounds(self, topic: str) -> list[Bounds]:
        with self._file(topic) as file:
            return file.bounds()

    def find(self, topic: str, partition: int, timestamp_ms: int) -> int:
        with self._file(topic) as file:
            return file.find(partition, timestamp_ms)

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._watcher.watch(topic, callback)

    def seal(self, topic: str, token: str) -> None:
        with self._file(topic) as file:
            file.seal(token)

    def unseal(self, topic: str, token: str) -> None:
        with self._file(topic) as file:
            file.unseal(token)

    def purge(self, topic: str, before_ms: int) -> int:
        with self._file(topic) as file:
            return file.purge(before_ms)

    def grow(self, topic: str, partitions: int) -> None:
        with self._file(topic) as file:
            file.grow(partitions)

    def close(self) -> None:
        self._closed = True
        self._watcher.close()
        self._executor.shutdown(wait=True)
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()

    # -- open files

    def _path(self, topic: str) -> Path:
        return self._directory / f"{topic}.db"

    def _data_version(self, topic: str) -> int:
        try:
            with self._file(topic) as file:
                return file.data_version()
        except NotFound:
            return -1

    @contextmanager
    def _file(self, topic: str) -> Iterator[TopicFile]:
        file = self._acquire(topic)
        try:
            yield file
        finally:
            self._release(topic)

    def _acquire(self, topic: str) -> TopicFile:
        with self._lock:
            if self._closed:
                raise Unavailable("the storage is closed")
            file = self._open.get(topic)
            if file is None:
                file = self._open[topic] = TopicFile(self._path(topic), self._executor)
                self._evict()
            self._open.move_to_end(topic)
            self._users[topic] = self._users.get(topic, 0) + 1
            return file

    def _release(self, topic: str) -> None:
        with self._lock:
            self._users[topic] -= 1
            if not self._users[topic]:
                del self._users[topic]
                if topic in self._deleted:
                    self._deleted.pop(topic).close()

    def _evict(self) -> None:
        """Close the files that were not used for longest and are not in use."""
        for topic in list(self._open)[:-1]:
            if len(self._open) <= self._max_open:
                return
            if topic not in self._users:
                self._open.pop(topic).close()
