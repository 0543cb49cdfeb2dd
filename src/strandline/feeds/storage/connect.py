"""Opens the store of the feeds."""

from __future__ import annotations

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.errors import Invalid
from strandline.feeds.settings import FeedSettings
from strandline.feeds.storage.port import FeedStore
from strandline.feeds.storage.sql import SqlFeedStore

FILE = "feeds.db"


def connect(settings: FeedSettings, databases: Databases, clock: Clock) -> FeedStore:
    """The store at the address of the settings; without one, a file in the data directory."""
    if not settings.url:
        return SqlFeedStore(databases.get("", FILE), settings.limits, clock)
    if not settings.url.startswith(("redis://", "redis+cluster://")):
        raise Invalid("feeds.url must be redis://host:port/0 or redis+cluster://host:port,host:port")
    from strandline.feeds.storage.redis import RedisFeedStore  # noqa: PLC0415 - its driver is an extra

    return RedisFeedStore(
        settings.url, settings.limits, clock, replicas=settings.replicas, wait_ms=settings.replica_wait_ms
    )
