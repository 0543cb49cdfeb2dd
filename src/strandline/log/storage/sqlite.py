"""The embedded storage: a directory with one SQLite file per topic."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from strandline.engine import sqlite
from strandline.engine.private import make_directory
from strandline.engine.watcher import Watcher
from strandline.errors import Damaged, StrandlineError, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage.compaction import Compactor
from strandline.log.storage.port import Bounds, Fence, FencingStorage, Placed, SealableStorage
from strandline.log.storage.topic_file import TopicFile
from strandline.room import Durations

_file_of_topic = re.compile(r"(.+)\.db(?:-wal|-shm)?").fullmatch
_WRITERS = 8
# Separate from the writers, so that no append waits for the checkpoints of other topics.
_COPIERS = 2


class SqliteStorage(SealableStorage, FencingStorage):
    """Several processes may use the same directory at once."""

    def __init__(self, directory: Path, *, poll_interval_ms: int = 25, max_open_topics: int = 256) -> None:
        sqlite.check_library()
        make_directory(directory)
        self._directory = directory
        self._max_open = max_open_topics
        self._executor = ThreadPoolExecutor(_WRITERS, thread_name_prefix="strandline-writer")
        self._copier = ThreadPoolExecutor(_COPIERS, thread_name_prefix="strandline-copier")
        self._watcher = Watcher(self._versions, poll_interval_ms / 1000)
        self._compactor = Compactor(self._compact)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Opened] = OrderedDict()
        self._openings = itertools.count()
        # The damaged batches that were found, as partition and first offset, so that each is counted once.
        self._commit_times = Durations()
        self._damage: dict[str, set[tuple[int | None, int | None]]] = {}
        self._closed = False

    def check_ready(self) -> None:
        self._refuse_closed()
        if not os.access(self._directory, os.R_OK | os.W_OK | os.X_OK):
            raise Unavailable(f"the directory {self._directory} is missing, or this process may not write in it")

    def create_topic(self, topic: str, partitions: int, retention_ms: int | None) -> None:  # noqa: ARG002 - see `purge`
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
                return self._listed(topic, writes=True).file.append(batches, waits=waits)
        except StrandlineError as error:
            failed: Future[dict[int, Placed]] = Future()
            failed.set_exception(error)
            return failed

    def try_append(self, topic: str, batches: Mapping[int, NewRecords]) -> dict[int, Placed] | None:
        with self._lock:
            opened = self._listed(topic, writes=True)
            opened.users += 1
        try:
            return opened.file.try_append(batches)
        finally:
            self._release(opened)

    def append_fenced(
        self, topic: str, batches: Mapping[int, NewRecords], fence: Fence
    ) -> Future[dict[int, Placed]]:
        def store() -> dict[int, Placed]:
            with self._using(topic, writes=True) as opened:
                return opened.file.append_fenced(batches, fence)

        with self._lock:  # held until the append has started, so that `close` finishes or refuses it
            self._refuse_closed()
            return self._executor.submit(store)

    def raise_fence(self, topic: str, fence: Fence) -> None:
        with self._using(topic, writes=True) as opened:
            opened.file.raise_fence(fence)

    def _stored(self, topic: str, small: bool, many: bool, seconds: float) -> None:
        self._commit_times.add(seconds)
        if small:
            self._compactor.appended(topic, due=many)
        self._watcher.notify(topic)

    def _compact(self, topic: str, everything: bool) -> Iterator[None]:
        with self._lock:
            opened = self._open.get(topic)
            if opened is None or self._closed:
                return  # a process that opens the file again will count its small batches
            opened.users += 1
        try:
            yield from opened.file.compact(everything=everything)
        finally:
            self._release(opened)

    def read(self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch:
        with self._using(topic) as opened:
            return opened.file.read(partition, offset, max_records, max_bytes)

    def bounds_of(self, topics: Sequence[str]) -> list[list[Bounds]]:
        found = []
        for topic in topics:
            with self._using(topic) as opened:
                found.append(opened.file.bounds())
        return found

    def end(self, topic: str, partition: int) -> int:
        with self._using(topic) as opened:
            return opened.file.end(partition)

    def find(self, topic: str, partition: int, timestamp_ms: int) -> int:
        with self._using(topic) as opened:
            return opened.file.find(partition, timestamp_ms)

    def find_damage(self, topic: str) -> Iterator[Damaged]:
        with self._using(topic) as opened:
            for error in opened.file.find_damage():
                self._note_damage(topic, error)
                yield error

    def damaged_batches(self) -> dict[str, int]:
        return {topic: len(found) for topic, found in [*self._damage.items()]}

    def stored_bytes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        with os.scandir(self._directory) as files:
            for file in files:
                if found := _file_of_topic(file.name):
                    with suppress(FileNotFoundError):  # deleted since
                        sizes[found[1]] = sizes.get(found[1], 0) + file.stat().st_size
        return sizes

    def commit_times(self) -> Durations:
        return self._commit_times

    def _note_damage(self, topic: str, error: Damaged) -> None:
        place = (error.info.get("partition"), error.info.get("first_offset"))
        self._damage.setdefault(topic, set()).add(place)

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._watcher.watch(topic, callback)

    def seal(self, topic: str, token: str) -> None:
        with self._using(topic, writes=True) as opened:
            opened.file.seal(token)

    def unseal(self, topic: str, token: str) -> None:
        with self._using(topic, writes=True) as opened:
            opened.file.unseal(token)

    def purge(self, topic: str, before_ms: int, until: Mapping[int, int] | None = None) -> int:
        with self._using(topic, writes=True) as opened:
            removed = opened.file.purge(before_ms, until)
            if opened.file.has_small_batches:  # perhaps left by a process that ended
                self._compactor.appended(topic, due=False)
            return removed

    def retain(self, topic: str, retention_ms: int | None) -> None:  # noqa: ARG002 - see `purge`
        self._refuse_closed()

    def grow(self, topic: str, partitions: int) -> None:
        with self._using(topic, writes=True) as opened:
            opened.file.grow(partitions)

    def tidy(self) -> None:
        with self._lock:
            for topic, opened in [*self._open.items()]:
                # The system frees the space of a deleted file only when no process has it open.
                if opened.unused and not self._path(topic).exists():
                    self._open.pop(topic).file.close()

    def close(self) -> None:
        self._watcher.close()
        self._compactor.close()
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
            opened = self._listed(topic, writes=writes)
            opened.users += 1
        try:
            yield opened
        except Damaged as error:
            self._note_damage(topic, error)
            raise
        finally:
            self._release(opened)

    def _listed(self, topic: str, *, writes: bool) -> _Opened:
        opened = self._open.get(topic)
        if writes and opened is not None and opened.file.read_only:
            self._unlist(topic)  # the file may have become writable
            opened = None
        if opened is None or self._closed:
            self._refuse_closed()
            stored = partial(self._stored, topic)
            file = TopicFile(self._path(topic), self._executor, self._copier, stored)
            opened = self._open[topic] = _Opened(file, next(self._openings))
            self._evict()
        self._open.move_to_end(topic)
        return opened

    def _unlist(self, topic: str) -> None:
        """Let the next user open the file again, or find it deleted. The last user closes it."""
        opened = self._open.pop(topic, None)
        if opened is not None:
            opened.listed = False
            opened.users += 1
            self._executor.submit(self._finish, opened)

    def _finish(self, opened: _Opened) -> None:
        opened.file.finish()
        self._release(opened)

    def _release(self, opened: _Opened) -> None:
        with self._lock:
            opened.users -= 1
            if not opened.listed and not opened.users:
                opened.file.close()

    def _evict(self) -> None:
        """Close the least recently used files that are not in use."""
        for topic in list(self._open)[:-1]:
            if len(self._open) <= self._max_open:
                return
            if self._open[topic].unused:
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

    @property
    def unused(self) -> bool:
        return not self.users and not self.file.busy
