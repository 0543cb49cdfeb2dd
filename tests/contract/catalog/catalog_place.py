"""A catalog that several processes can open, and what tests put into it."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from strandline.errors import Conflict
from strandline.log.catalog import Catalog
from strandline.log.catalog.postgres import PostgresCatalog
from strandline.log.catalog.sqlite import SqliteCatalog
from strandline.log.model import (
    CatalogEntry,
    EventType,
    KafkaConfiguration,
    Schema,
    StorageInfo,
    Timeline,
)

# Of a kind that every catalog takes; nobody connects to it.
FIRST = StorageInfo("default", "kafka", kafka_configuration=KafkaConfiguration("nowhere:9092"))
CREATED_AT = "2024-05-01T12:00:00.000Z"


class CatalogPlace:
    """`address` is that of a PostgreSQL database, or `sqlite:` and a file."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: list[Catalog] = []

    def open(self) -> Catalog:
        """Another connection to it; the first storage is there."""
        if self.address.startswith("sqlite:"):
            catalog: Catalog = SqliteCatalog(Path(self.address.removeprefix("sqlite:")), FIRST)
        else:
            catalog = PostgresCatalog(self.address)
            with contextlib.suppress(Conflict):
                catalog.storages.add(FIRST)
        self._opened.append(catalog)
        return catalog

    def close(self) -> None:
        for catalog in self._opened:
            catalog.close()


def timeline(name: str, order: int = 1, storage: str = "default") -> Timeline:
    return Timeline(str(uuid.uuid4()), name, order, storage, f"{name}.{uuid.uuid4().hex}", created_at=CREATED_AT)


def create(catalog: Catalog, name: str, **definition: object) -> CatalogEntry:
    """Announce a topic and record an event type that owns it."""
    first = timeline(name)
    catalog.doom_topic(first.storage_id, first.topic, 1_000_000)
    catalog.create(str(uuid.uuid4()), EventType(name, **definition), first)
    entry = catalog.get(name)
    assert entry is not None
    return entry


def schema(version: str) -> Schema:
    return Schema(schema=f'{{"title":"{version}"}}', version=version)
