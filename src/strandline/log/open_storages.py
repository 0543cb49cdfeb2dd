"""The storages of one process, opened on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from strandline.errors import Invalid, NotFound, Unavailable
from strandline.log.model import StorageInfo, Timeline
from strandline.log.settings import LogSettings
from strandline.log.storage import FencingStorage, SealableStorage, Storage
from strandline.log.storage.registry import StorageConfiguration
from strandline.room import Durations


class Storages:
    def __init__(self, listed: Callable[[], list[StorageInfo]], data: Path, settings: LogSettings) -> None:
        self._listed = listed
        self._data = data
        self._settings = settings
        self._lock = threading.Lock()
        self._open: dict[str, Storage] = {}
        self._configurations: dict[str, StorageConfiguration] = {}

    def get(self, storage_id: str) -> Storage:
        opened = self._open.get(storage_id)
        if opened is not None:
            return opened
        with self._lock:
            if storage_id not in self._open:
                self._open[storage_id] = self._connect(storage_id)
            return self._open[storage_id]

    def check(self, configuration: StorageConfiguration) -> None:
        """Raise Invalid if the settings of this node do not allow the configuration."""
        configuration.check(self._data, self._settings)

    def check_ready(self, storage_id: str) -> None:
        """Unavailable if the storage cannot be used now."""
        try:
            self.get(storage_id).check_ready()
        except Unavailable as error:
            raise Unavailable(f"storage {storage_id!r} cannot be used: {error.detail}", retry_after=5) from error

    def tidy(self) -> None:
        """Close storages that were removed from the catalog or changed. The others release deleted topics."""
        with self._lock:
            now = {info.id: info.configuration for info in self._listed()}
            stale = [found for found, opened in self._configurations.items() if now.get(found) != opened]
            closing = [self._open.pop(storage_id) for storage_id in stale]
            for storage_id in stale:
                del self._configurations[storage_id]
            current = [*self._open.values()]
        for storage in closing:
            storage.close()
        for storage in current:
            storage.tidy()

    def damaged_batches(self) -> dict[str, int]:
        """How many damaged batches were found in this process, by topic."""
        return {
            topic: number
            for storage in [*self._open.values()]
            for topic, number in storage.damaged_batches().items()
        }

    def stored_bytes(self) -> dict[str, int]:
        """The sizes of topics, of the storages that this process has opened. Asks the file system."""
        return {
            topic: size for storage in [*self._open.values()] for topic, size in storage.stored_bytes().items()
        }

    def commit_times(self) -> dict[str, Durations]:
        """How long commits took, by storage."""
        found = {name: storage.commit_times() for name, storage in [*self._open.items()]}
        return {name: times for name, times in found.items() if times is not None}

    def _connect(self, storage_id: str) -> Storage:
        info = next((info for info in self._listed() if info.id == storage_id), None)
        if info is None:
            raise NotFound(f"storage {storage_id!r} does not exist; list the storages to find it")
        try:
            storage = info.configuration.open(self._data, self._settings)
        except Invalid as error:
            # Publishers and readers cannot correct the configuration; the operator of the node can.
            raise Unavailable(f"storage {storage_id!r} cannot be opened: {error.detail}", retry_after=5) from error
        self._configurations[storage_id] = info.configuration
        return storage

    def close(self) -> None:
        with self._lock:
            for storage in self._open.values():
                storage.close()
            self._open.clear()
            self._configurations.clear()


def fencing(storage: Storage) -> FencingStorage:
    """The storage, which must be able to fence appends."""
    if not isinstance(storage, FencingStorage):
        raise Invalid("the storage of the event type has no fences; switch it to another storage")
    return storage


def unseal(storages: Storages, timeline: Timeline, token: str) -> None:
    """Remove the seal of an aborted switch, if the storage can seal topics."""
    storage = storages.get(timeline.storage_id)
    if isinstance(storage, SealableStorage):
        storage.unseal(timeline.topic, token)
