"""Opens the subscriptions, which are where the catalog is."""

from __future__ import annotations

from pathlib import Path

from strandline.config import Settings
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.log.subscriptions.sqlite import SqliteSubscriptions


def connect(settings: Settings, data: Path) -> SubscriptionStore:
    lease_ms = settings.coordination.session_timeout_ms
    if settings.catalog.url:
        from strandline.log.subscriptions.postgres import PostgresSubscriptions  # noqa: PLC0415 - an extra

        return PostgresSubscriptions(settings.catalog.url, lease_ms=lease_ms)
    return SqliteSubscriptions(data / "catalog.db", lease_ms=lease_ms)
