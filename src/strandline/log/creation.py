"""Creates event types: first the topic, then the event type that owns it."""

from __future__ import annotations

import uuid

from strandline.clock import Clock, to_rfc3339
from strandline.errors import Conflict, Invalid
from strandline.log.catalog import Catalog
from strandline.log.model import EventType, StorageInfo, Timeline
from strandline.log.open_storages import Storages
from strandline.log.settings import LogSettings
from strandline.log.storage.registry import SHARED_TYPES
from strandline.log.upkeep import Upkeep

# A topic that no event type owns after this long was left behind by a crash.
_CREATION_MS = 600_000


class Creation:
    def __init__(
        self, catalog: Catalog, storages: Storages, upkeep: Upkeep, settings: LogSettings, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._storages = storages
        self._upkeep = upkeep
        self._settings = settings
        self._clock = clock

    def storage(self, storage_id: str | None) -> StorageInfo:
        """The storage of that id, or the default one. Invalid or Conflict if there is none."""
        for storage in self._catalog.storages.list():
            if storage.default if storage_id is None else storage.id == storage_id:
                return storage
        if storage_id is not None:
            raise Invalid(f"storage {storage_id!r} does not exist; add it first (POST /storages)")
        raise Conflict(
            f"there is no storage for events yet; add one of type {SHARED_TYPES} first (POST /storages)"
        )

    def create(self, complete: EventType, storage_id: str) -> None:
        """Create an event type with a complete definition, and its first topic in that storage."""
        topic = f"{complete.name[:120]}.{uuid.uuid4().hex}"
        # The topic is recorded before it exists, so that a sweep deletes it after a crash at any later step.
        self._catalog.mark_for_deletion(storage_id, topic, _CREATION_MS)
        retention_ms = complete.retention_ms(self._settings.retention_ms)
        self._storages.get(storage_id).create_topic(topic, complete.partition_count, retention_ms)
        try:
            self._catalog.create(str(uuid.uuid4()), complete, self._first_timeline(complete, storage_id, topic))
        except Conflict:
            # No event type owns the topic. After any other error one may own it, so a later sweep decides.
            self._catalog.mark_for_deletion(storage_id, topic)
            self._upkeep.sweep([(storage_id, topic)])
            raise

    def adopt(self, complete: EventType, storage_id: str, topic: str) -> None:
        """Create an event type over a topic that exists already. It is never marked for deletion."""
        self._catalog.create(str(uuid.uuid4()), complete, self._first_timeline(complete, storage_id, topic))

    def _first_timeline(self, complete: EventType, storage_id: str, topic: str) -> Timeline:
        now = to_rfc3339(self._clock.now_ms())
        return Timeline(str(uuid.uuid4()), complete.name, 1, storage_id, topic, created_at=now, switched_at=now)
