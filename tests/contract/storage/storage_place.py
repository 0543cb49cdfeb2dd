"""An address of records that several storages and processes can open, and helpers for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from strandline.log.records import NewRecords
from strandline.log.storage import Placed, Storage, compaction, stored_batches, topic_file
from strandline.log.storage.kafka import KafkaStorage
from strandline.log.storage.sqlite import SqliteStorage

WORKER = Path(__file__).with_name("worker.py")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000


def store_as(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the form in which this process stores records in SQLite files."""
    if form == "small batches":  # and none of them is compacted
        monkeypatch.setattr(topic_file, "_MANY_SMALL", 1_000_000)
        monkeypatch.setattr(compaction, "_IDLE_SECONDS", 1_000_000)
    elif form == "Arrow only":
        monkeypatch.setattr(stored_batches, "_SMALL_RECORDS", 0)
    elif form == "compacting":  # after every commit, beside everything else that happens
        monkeypatch.setattr(topic_file, "_MANY_SMALL", 1)
        monkeypatch.setattr(topic_file, "_FEW_SMALL", 1)


class Place:
    """An address that several storages and processes can open at once."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: list[Storage] = []

    def open(self) -> Storage:
        kind, _, where = self.address.partition(":")
        storage: Storage = (
            SqliteStorage(Path(where), poll_interval_ms=5) if kind == "sqlite" else KafkaStorage(where, {})
        )
        self._opened.append(storage)
        return storage

    def start(self, *arguments: object, failpoint: str = "") -> subprocess.Popen[str]:
        """Another process at this place; see `worker.py` for what it can do."""
        command = [sys.executable, str(WORKER), self.address, *map(str, arguments)]
        variables = {**os.environ, "STRANDLINE_TEST_FAILPOINT": failpoint}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=variables)

    def run(self, *arguments: object) -> list[str]:
        """The output of another process, which must end with code 0."""
        with self.start(*arguments) as process:
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return out.splitlines()

    def close(self) -> None:
        for storage in self._opened:
            storage.close()


def records(*values: bytes, at: int = NOW_MS) -> NewRecords:
    return NewRecords(at, list(values))


def append(
    storage: Storage, topic: str, batches: Mapping[int, Sequence[bytes]], *, at: int = NOW_MS
) -> dict[int, Placed]:
    """Append and wait for the result."""
    new = {partition: records(*values, at=at) for partition, values in batches.items()}
    return storage.append(topic, new).result(30)


def compact(storage: SqliteStorage, topic: str) -> None:
    """Compact all small batches of the topic now."""
    with storage._using(topic) as opened:
        for _ in opened.file.compact(everything=True):
            pass


def read(storage: Storage, topic: str, partition: int, offset: int = 0) -> list[tuple[int, bytes]]:
    """All records from an offset on, in several reads."""
    found: list[tuple[int, bytes]] = []
    while (batch := storage.read(topic, partition, offset, max_records=1000, max_bytes=1 << 20)).num_rows:
        found.extend(zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True))
        offset = found[-1][0] + 1
    return found


def values(storage: Storage, topic: str, partition: int, offset: int = 0) -> list[bytes]:
    return [value for _, value in read(storage, topic, partition, offset)]
