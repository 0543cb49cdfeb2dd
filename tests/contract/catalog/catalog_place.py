"""A catalog that several processes can open, and test data for it."""

from __future__ import annotations

import uuid

import msgspec

from databases import open_database
from strandline.clock import ManualClock
from strandline.engine.database import Database
from strandline.log.catalog import Catalog, SwitchEffect
from strandline.log.catalog.sql import SqlCatalog
from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Switch, Timeline
from strandline.log.storage.registry import KafkaConfiguration
from strandline.log.switching import State

# Every catalog accepts a Kafka storage; these tests never connect to it.
FIRST = StorageInfo("default", "kafka", kafka_configuration=KafkaConfiguration("nowhere:9092"))
CREATED_AT = "2024-05-01T12:00:00.000Z"


class CatalogPlace:
    """`address` is the URL of a PostgreSQL database, or `sqlite:` and a path. Only tests advance the clock."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.clock = ManualClock()
        self._opened: list[Database] = []

    def open(self) -> Catalog:
        """Open another connection to the catalog, which has the first storage."""
        self._opened.append(open_database(self.address))
        return SqlCatalog(self._opened[-1], FIRST, self.clock.now_ms)

    def close(self) -> None:
        for database in self._opened:
            database.close()


def timeline(name: str, order: int = 1, storage: str = "default") -> Timeline:
    return Timeline(str(uuid.uuid4()), name, order, storage, f"{name}.{uuid.uuid4().hex}", created_at=CREATED_AT)


def create(catalog: Catalog, name: str, **definition: object) -> CatalogEntry:
    """Mark a topic for deletion, then create an event type that owns it."""
    first = timeline(name)
    catalog.mark_for_deletion(first.storage_id, first.topic, 1_000_000)
    catalog.create(str(uuid.uuid4()), EventType(name, **definition), first)
    entry = catalog.get(name)
    assert entry is not None
    return entry


def switch_of(entry: CatalogEntry, token: str | None = None, kind: str = "switch") -> Switch:
    """A new switch of an event type to a new topic, in its first state."""
    token = token or str(uuid.uuid4())
    return Switch(
        token=token,
        event_type=entry.event_type.name,
        kind=kind,  # type: ignore[arg-type]
        state=State.PREPARING,
        storage_id="default",
        topic=f"{entry.event_type.name}.{token}",
        partitions=entry.event_type.partition_count,
        initiator="me",
        started_at=CREATED_AT,
    )


def effect(entry: CatalogEntry, switch: Switch) -> SwitchEffect:
    """The effect of a switch: the old timeline is closed, the new one is open."""
    closed = msgspec.structs.replace(entry.active, closed_at="then", latest_position={"0": 41})
    opened = msgspec.structs.replace(timeline(entry.event_type.name, entry.active.order + 1), topic=switch.topic)
    return SwitchEffect(closed, opened)


def schema(version: str) -> Schema:
    return Schema(schema=f'{{"title":"{version}"}}', version=version)
