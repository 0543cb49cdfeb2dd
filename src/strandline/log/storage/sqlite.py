"""The embedded storage: a directory with one SQLite file per topic."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from strandline.engine import sqlite
from strandline.engine.private import make_directory
from strandline.engine.watcher import Watcher
from strandline.errors import StrandlineError, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage.port import Bounds, Placed, SealableStorage
from strandline.log.storage.topic_file import TopicFile

_WRITERS = 8
# Separate from the writers, so that no append waits for the checkpoints of other topics.
_COPIERS = 2


class SqliteStorage(SealableStorage):
    """Several processes may use the same directory at once."""

    def __init__(self, directory: Path, *, poll_interval_ms: int = 25, max_open_topics: int = 256) -> None:
        sqlite.check_library()
        make_directory(directory)
        self._directory = directory
        self._max_open = max_open_topics
        self._executor = ThreadPoolExecutor(_WRITERS, thread_name_prefix="strandline-writer")
        self._copier = ThreadPoolExecutor(_COPIERS, thread_name_prefix="strandline-copier")
        self._watcher = Watcher(self._versions, poll_interval_ms / 1000)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Opened] = OrderedDict()
        self._openings = itertools.count()
        self._closed = False

    def create_topic(self, topic: str, partitions: int, retention_ms: int) -> None:  # noqa: ARG002 - see `purge`
        self._refuse_closed()
        TopicFile.create(self._path(topic), partitions)

    def delete_topic(self, topic: str) -> None:
        with self._lock:
            self._refuse_closed()
            self._unlist(topic)
            # Under the lock, so that no thread opens a partly deleted file.
            sqlite.remove(self._path(topic))
        self._watcher.notify(topic)

    def append(
        self, topic: str, batches: Mapping[int, NewRecords], *, waits: bool = False
    ) -> Future[dict[int, Placed]]:
        try:
            with self._lock:  # held until the append has started, so that `close` finishes or refuses it
                opened = self._acquire(topic, writes=True)
                future = opened.file.append(batches, waits=waits)
        except StrandlineError as error:
            failed: Future[dict[int, Placed]] = Future()
            failed.set_exception(error)
            return failed
        future.add_done_callback(lambda _: self._appended(topic, opened))
        return future

    def _appended(self, topic: str, opened: _Opened) -> None:
        self._release(opened)
        self._watcher.notify(topic)

    def read(self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch:
        with self._using(topic) as opened:
            return opened.file.read(partition, offset, max_records, max_bytes)

    def bounds_of(self, topics: Sequence[str]) -> list[list[Bounds]]:
        found = []
        for topic in topics:
            with self._using(topic) as opened:
                found.append(opened.file.bounds())
        return found

    def find(self, topic: str, partition: int, timestamp_ms: int) -> int:
        with self._using(topic) as opened:
            return opened.file.find(partition, timestamp_ms)

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._watcher.watch(topic, callback)

    def seal(self, topic: str, token: str) -> None:
        with self._using(topic, writes=True) as opened:
            opened.file.seal(token)

    def unseal(self, topic: str, token: str) -> None:
        with self._using(topic, writes=True) as opened:
            opened.file.unseal(token)

    def purge(self, topic: str, before_ms: int) -> int:
        with self._using(topic, writes=True) as opened:
            return opened.file.purge(before_ms)

    def retain(self, topic: str, retention_ms: int) -> None:  # noqa: ARG002 - see `purge`
        self._refuse_closed()

    def grow(self, topic: str, partitions: int) -> None:
        with self._using(topic, writes=True) as opened:
            opened.file.grow(partitions)

    def tidy(self) -> None:
        with self._lock:
            for topic, opened in [*self._open.items()]:
                # The system frees the space of a deleted file only when no process has it open.
                if not opened.users and not self._path(topic).exists():
                    self._open.pop(topic).file.close()

    def close(self) -> None:
        self._watcher.close()
        with self._lock:
            self._closed = True
            files = [opened.file for opened in self._open.values()]
        self._executor.shutdown(wait=True)
        for file in files:  # without the lock, because finishing an append takes it
            file.finish()
        self._copier.shutdown(wait=True)
        with self._lock:
            for opened in self._open.values():
                opened.file.close()
            self._open.clear()

    # -- open files

    def _path(self, topic: str) -> Path:
        return self._directory / f"{topic}.db"

    def _versions(self, topics: Sequence[str]) -> dict[str, object]:
        return {topic: self._version(topic) for topic in topics}

    def _version(self, topic: str) -> object:
        try:
            # SQLite counts per connection, so versions of different openings cannot be compared.
            with self._using(topic) as opened:
                return opened.number, opened.file.data_version()
        except Exception as error:  # noqa: BLE001 - a broken file must not hide changes of the others
            return error

    @contextmanager
    def _using(self, topic: str, *, writes: bool = False) -> Iterator[_Opened]:
        with self._lock:
            opened = self._acquire(topic, writes=writes)
        try:
            yield opened
        finally:
            self._release(opened)

    def _acquire(self, topic: str, *, writes: bool) -> _Opened:
        self._refuse_closed()
        opened = self._open.get(topic)
        if writes and opened is not None and opened.file.read_only:
            self._unlist(topic)  # the file may have become writable
            opened = None
        if opened is None:
            opened = _Opened(TopicFile(self._path(topic), self._executor, self._copier), next(self._openings))
            self._open[topic] = opened
            self._evict()
        self._open.move_to_end(topic)
        opened.users += 1
        return opened

    def _unlist(self, topic: str) -> None:
        """Let the next user open the file again, or find it deleted."""
        opened = self._open.pop(topic, None)
        if opened is not None:
            opened.listed = False
            opened.close_if_unused()

    def _release(self, opened: _Opened) -> None:
        with self._lock:
            opened.users -= 1
            if not opened.listed:
                opened.close_if_unused()

    def _evict(self) -> None:
        """Close the least recently used files that are not in use."""
        for topic in list(self._open)[:-1]:
            if len(self._open) <= self._max_open:
                return
            if not self._open[topic].users:
                self._open.pop(topic).file.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Unavailable("the storage is closed")


@dataclass
class _Opened:
    """A file with the number of its opening and its user count. If it is not listed, its last user closes it."""

    file: TopicFile
    number: int
    users: int = 0
    listed: bool = True

    def close_if_unused(self) -> None:
        if not self.users:
            self.file.close()
