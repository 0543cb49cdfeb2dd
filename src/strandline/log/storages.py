"""The storages of one process, opened when first used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from strandline.config import LogSettings
from strandline.errors import NotFound, Unavailable
from strandline.log.model import KafkaConfiguration, StorageInfo, Timeline
from strandline.log.storage import SealableStorage, Storage
from strandline.log.storage.sqlite import SqliteStorage


class Storages:
    def __init__(self, listed: Callable[[], list[StorageInfo]], data: Path, settings: LogSettings) -> None:
        self._listed = listed
        self._data = data
        self._settings = settings
        self._lock = threading.Lock()
        self._open: dict[str, Storage] = {}
        self._infos: dict[str, StorageInfo] = {}

    def get(self, storage_id: str) -> Storage:
        opened = self._open.get(storage_id)
        if opened is not None:
            return opened
        with self._lock:
            if storage_id not in self._open:
                self._open[storage_id] = self._connect(storage_id)
            return self._open[storage_id]

    def tidy(self) -> None:
        """Close storages that the catalog no longer has, or has elsewhere; the others let go of deleted topics."""
        with self._lock:
            there = {info.id: _place(info) for info in self._listed()}
            gone = [found for found, info in self._infos.items() if there.get(found) != _place(info)]
            closing = [self._open.pop(storage_id) for storage_id in gone]
            for storage_id in gone:
                del self._infos[storage_id]
            staying = [*self._open.values()]
        for storage in closing:
            storage.close()
        for storage in staying:
            storage.tidy()

    def _connect(self, storage_id: str) -> Storage:
        info = next((info for info in self._listed() if info.id == storage_id), None)
        if info is None:
            raise NotFound(f"storage {storage_id!r} does not exist")
        storage = self._connected(info)
        self._infos[storage_id] = info
        return storage

    def _connected(self, info: StorageInfo) -> Storage:
        if info.sqlite_configuration is not None:
            return SqliteStorage(
                self._data / info.sqlite_configuration.directory,
                poll_interval_ms=self._settings.poll_interval_ms,
                max_open_topics=self._settings.max_open_topics,
            )
        if info.kafka_configuration is not None:
            return self._connect_kafka(info.kafka_configuration)
        raise Unavailable(f"storage {info.id!r} is of type {info.storage_type}, which is not supported yet")

    def _connect_kafka(self, configuration: KafkaConfiguration) -> Storage:
        # Imported here: the driver is an extra that a node without Kafka storages need not have.
        from strandline.log.storage.kafka import KafkaOptions, KafkaStorage  # noqa: PLC0415

        options = KafkaOptions(
            max_event_bytes=self._settings.max_event_bytes,
            poll_interval_ms=self._settings.poll_interval_ms,
            max_open_reads=self._settings.max_open_reads,
        )
        return KafkaStorage(configuration.bootstrap_servers, configuration.properties, options)

    def close(self) -> None:
        with self._lock:
            for storage in self._open.values():
                storage.close()
            self._open.clear()
            self._infos.clear()


def _place(info: StorageInfo) -> tuple[object, object]:
    return info.sqlite_configuration, info.kafka_configuration


def unseal(storages: Storages, timeline: Timeline, token: str) -> None:
    """Take away the seal of a switch that was aborted, where there can be one."""
    storage = storages.get(timeline.storage_id)
    if isinstance(storage, SealableStorage):
        storage.unseal(timeline.topic, token)
