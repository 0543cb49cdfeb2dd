"""The settings of the log and its catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strandline.config import setting
from strandline.coordination.settings import CoordinationSettings


@dataclass(frozen=True)
class LogSettings:
    max_event_bytes: int = setting(999_000, "Largest event in bytes, after enrichment.", minimum=100)
    max_batch_events: int = setting(100_000, "Most events in one publish.", minimum=1)
    max_partitions: int = setting(1_000, "Most partitions of one event type.", minimum=1)
    retention_ms: int = setting(172_800_000, "Retention of event types that do not set one (2 days).", minimum=1)
    publish_timeout_ms: int = setting(
        30_000, "How long a publish waits for the storage; after that its outcome is unknown.", minimum=1
    )
    publish_wait_ms: int = setting(
        40_000, "How long a publish waits for a timeline switch before it is refused (503).", minimum=1
    )
    max_waiting_publishes: int = setting(
        10_000, "Publishes of one event type that may wait for a switch; more are refused (503).", minimum=1
    )
    switch_timeout_ms: int = setting(
        30_000, "How long a switch waits for every node to confirm before it is rolled back.", minimum=100
    )
    purge_interval_ms: int = setting(60_000, "How often expired records are removed.", minimum=100)
    cleanup_delay_ms: int = setting(
        60_000, "How long the topic of a removed timeline is kept for reads in progress.", minimum=0
    )
    poll_interval_ms: int = setting(
        25, "How often a waiting reader polls for records of other processes.", minimum=1
    )
    max_open_topics: int = setting(256, "Topic files kept open by one process.", minimum=1)
    max_open_reads: int = setting(
        64,
        "Kafka consumers that one process keeps open for readers that continue, with up to 16 MB each.",
        minimum=1,
    )
    kafka_secrets: str = setting(
        "",
        "Environment variables that properties of Kafka storages may name as `env:NAME`, separated by commas. "
        "`NAME@host:port` permits the variable for this bootstrap server only, `NAME` for all.",
    )
    storage_directories: str = setting(
        "", "Directories outside of the data directory that SQLite storages may use, separated by commas."
    )

    @property
    def publish_deadline_ms(self) -> int:
        """The longest time that a publish waits for a switch and for its storage."""
        return self.publish_wait_ms + self.publish_timeout_ms


@dataclass(frozen=True)
class CatalogSettings:
    url: str = setting(
        "",
        "Database of event types, timelines and subscriptions: `postgresql://user:env:NAME@host:port/database` "
        "with the password in the environment variable NAME. If empty: a file in the data directory, for the "
        "processes of one machine. Set it together with `coordination.url`.",
    )


class LogSections(Protocol):
    """The sections that the log reads."""

    @property
    def log(self) -> LogSettings: ...

    @property
    def catalog(self) -> CatalogSettings: ...

    @property
    def coordination(self) -> CoordinationSettings: ...
