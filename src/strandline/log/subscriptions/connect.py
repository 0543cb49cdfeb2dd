"""Opens the subscriptions, which are stored beside the catalog."""

from __future__ import annotations

from strandline.engine.connect import Databases
from strandline.log.catalog.connect import FILE
from strandline.log.settings import LogSections
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.log.subscriptions.sql import SqlSubscriptions


def connect(settings: LogSections, databases: Databases) -> SubscriptionStore:
    database = databases.get(settings.catalog.url, FILE)
    return SqlSubscriptions(database, lease_ms=settings.coordination.session_timeout_ms)
