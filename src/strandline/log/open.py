"""Opens the log room of a data directory."""

from __future__ import annotations

from pathlib import Path

from strandline.clock import Clock
from strandline.coordination.connect import connect as connect_coordination
from strandline.engine.connect import Databases
from strandline.log.catalog.connect import FILE
from strandline.log.catalog.connect import connect as connect_catalog
from strandline.log.local import LocalLog
from strandline.log.node import Node
from strandline.log.open_storages import Storages
from strandline.log.settings import LogSections
from strandline.log.subscriptions.sql import SqlSubscriptions


def open_log(data: Path, databases: Databases, settings: LogSections, clock: Clock) -> LocalLog:
    """The log room over the catalog, storages and coordination that the settings name."""
    catalog = connect_catalog(settings, databases, clock)
    storages = Storages(catalog.storages.list, data, settings.log)
    node = Node(lambda: connect_coordination(settings.coordination, data), catalog, storages, settings.log, clock)
    # Subscriptions are stored beside the catalog.
    database = databases.get(settings.catalog.url, FILE)
    subscriptions = SqlSubscriptions(database, lease_ms=settings.coordination.session_timeout_ms)
    return LocalLog(catalog, storages, node, subscriptions, settings, clock)
