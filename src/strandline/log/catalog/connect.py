"""Opens the catalog that the settings name."""

from __future__ import annotations

from pathlib import Path

from strandline.clock import Clock, to_rfc3339
from strandline.config import Settings
from strandline.errors import Invalid
from strandline.log.catalog.port import Catalog
from strandline.log.catalog.sqlite import SqliteCatalog
from strandline.log.model import StorageInfo
from strandline.log.storage.registry import SqliteConfiguration


def connect(settings: Settings, data: Path, clock: Clock) -> Catalog:
    """Invalid if the catalog and the coordination do not reach equally far."""
    _check(settings)
    if settings.catalog.url:
        from strandline.log.catalog.postgres import PostgresCatalog  # noqa: PLC0415 - its driver is an extra

        return PostgresCatalog(settings.catalog.url)
    first = StorageInfo(
        "default",
        "sqlite",
        sqlite_configuration=SqliteConfiguration("topics"),
        created_at=to_rfc3339(clock.now_ms()),
    )
    return SqliteCatalog(data / "catalog.db", first)


def _check(settings: Settings) -> None:
    """Nodes that share a catalog must see each other, and nodes that see each other must share a catalog."""
    if settings.catalog.url and not settings.coordination.url:
        raise Invalid(
            "catalog.url is for several machines, but coordination.url is empty, which is a file of one machine: "
            "set it to zookeeper://host:2181, or leave both out"
        )
    if settings.coordination.url and not settings.catalog.url:
        raise Invalid(
            "coordination.url is for several machines, but catalog.url is empty, which is a file of one machine: "
            "set it to postgresql://user@host:5432/database, or leave both out"
        )
