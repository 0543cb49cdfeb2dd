"""The settings of the feeds, and the sections they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strandline.config import setting
from strandline.feeds.model import FeedLimits
from strandline.log.settings import LogSections


@dataclass(frozen=True)
class FeedSettings:
    url: str = setting(
        "",
        "Store of the feeds: `redis://user:env:NAME@host:port/0` or `redis+cluster://user:env:NAME@host:port,…`, "
        "with the password in the environment variable NAME. If empty: a file in the data directory, for the "
        "processes of one machine.",
    )
    database_url: str = setting(
        "",
        "Database of dead letters and of the jobs that fill feeds: "
        "`postgresql://user:env:NAME@host:port/database`. If empty: a file in the data directory.",
    )
    cap: int = setting(800, "Newest ids that a feed keeps.", minimum=1)
    slack: int = setting(50, "Ids beyond the cap that a feed may have until it is trimmed.", minimum=0)
    unread_ms: int = setting(1_814_400_000, "Feeds that nobody reads for this long expire (21 days).", minimum=1)
    grace_ms: int = setting(
        864_000_000,
        "How long tombstones and the times of drops are kept (10 days). Older operations are refused and become "
        "dead letters, so it must be longer than any replay.",
        minimum=1,
    )
    record: bool = setting(
        True,
        "Publish every write to the event type `feeds.operations` before it is applied, so that a lost store can "
        "be restored from the log.",
    )
    retry_ms: int = setting(
        120_000,
        "How long an operation that failed in a part of the store is retried before it becomes a dead letter.",
        minimum=0,
    )

    replicas: int = setting(
        0,
        "Replicas of a Redis or Valkey server that must have a write before it is acknowledged (WAIT). With 0, "
        "a failover can lose writes that were acknowledged.",
        minimum=0,
    )
    replica_wait_ms: int = setting(
        1_000, "How long a write waits for the replicas; after that its outcome is unknown.", minimum=1
    )

    @property
    def limits(self) -> FeedLimits:
        return FeedLimits(self.cap, self.slack, self.unread_ms, self.grace_ms)


class FeedSections(LogSections, Protocol):
    """The sections that the feeds read."""

    @property
    def feeds(self) -> FeedSettings: ...
