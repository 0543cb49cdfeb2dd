"""Opens the catalog that is configured in the settings."""

from __future__ import annotations

from strandline.clock import Clock, to_rfc3339
from strandline.engine.connect import Databases
from strandline.errors import Invalid
from strandline.log.catalog.port import Catalog
from strandline.log.catalog.sql import SqlCatalog
from strandline.log.model import StorageInfo
from strandline.log.settings import LogSections
from strandline.log.storage.registry import SqliteConfiguration

FILE = "catalog.db"
#: The directory of the first storage.
TOPICS = "topics"


def connect(settings: LogSections, databases: Databases, clock: Clock) -> Catalog:
    """Invalid if only one of the catalog and the coordination can be used from several machines."""
    _check(settings)
    database = databases.get(settings.catalog.url, FILE)
    if database.shared:
        return SqlCatalog(database)
    first = StorageInfo(
        "default",
        "sqlite",
        sqlite_configuration=SqliteConfiguration(TOPICS),
        created_at=to_rfc3339(clock.now_ms()),
    )
    return SqlCatalog(database, first, clock.now_ms)


def _check(settings: LogSections) -> None:
    """Nodes that share a catalog must see each other, and nodes that see each other must share a catalog."""
    if settings.catalog.url and not settings.coordination.url:
        raise Invalid(
            "catalog.url is for several machines, but coordination.url is empty and stands for a local file: "
            "set coordination.url to zookeeper://host:2181, or remove catalog.url"
        )
    if settings.coordination.url and not settings.catalog.url:
        raise Invalid(
            "coordination.url is for several machines, but catalog.url is empty and stands for a local file: "
            "set catalog.url to postgresql://user@host:5432/database, or remove coordination.url"
        )
