"""The settings of the archive, and the sections it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strandline.config import setting
from strandline.log.settings import LogSections


@dataclass(frozen=True)
class ArchiveSettings:
    root: str = setting(
        "", "Where files go: a directory or a URL (`s3://…`, `hdfs://…`); empty: `archive` in the data directory."
    )
    event_types: str = setting(
        "*", "Event types to archive, separated by commas; `*` means all except the topics of journals."
    )
    template: str = setting(
        "%Y-%m-%d/%H/{event_type}",
        "The directory of an hour of an event type, UTC. For single event types: `…,orders=shop/%Y-%m-%d/%H/"
        "{event_type}`.",
    )
    time_field: str = setting(
        "metadata.occurred_at|@timestamp",
        "The field with an event's time, as RFC 3339 or in milliseconds. `@timestamp` is the time of publication, "
        "`a.b|@timestamp` uses it for events without the field. For single event types: `…,orders=placed_at`.",
    )
    duration_ms: int = setting(3_600_000, "The length of a shift.", minimum=1_000)
    grace_ms: int = setting(
        30_000, "How long after its end a shift is finished. Must be shorter than the shift.", minimum=0
    )
    ready_rule: str = setting(
        "barrier",
        "When an hour is ready. `barrier`: when all records published until its end plus the grace are archived. "
        "`timestamps`: when the newest event time of every partition is past the start of the hour.",
    )
    look_back_hours: int = setting(24, "How many past hours of a new event type are flagged.", minimum=0)
    late: str = setting(
        "append",
        "What to do with events for an hour that is flagged already: `append` (and flag the hour again), "
        "`quarantine` or `drop`.",
    )
    max_future_ms: int = setting(
        3_600_000, "Events dated further after their publication are quarantined.", minimum=0
    )
    max_past_ms: int = setting(
        31 * 86_400_000, "Events dated further before their publication are quarantined.", minimum=0
    )
    max_record_bytes: int = setting(16_000_000, "Larger records are quarantined.", minimum=1)
    on_unavailable: str = setting(
        "earliest", "Where to continue if records expired before they were archived: `earliest` or `latest`."
    )
    on_gap: str = setting(
        "flag",
        "What to do with hours that may lack records that expired before they were archived: `flag` (the "
        "manifest names them in `skipped`) or `hold` (the hours get no flag).",
    )
    retention_waits: bool = setting(
        True,
        "Whether events of archived event types are kept after their retention until they are archived.",
    )
    max_waiting_bytes: int = setting(
        10_000_000_000,
        "Retention does not wait for an event type with more bytes (estimated) of such events.",
        minimum=0,
    )
    interval_ms: int = setting(1_000, "How often the archive checks for new work.", minimum=10)
    min_records: int = setting(
        500_000, "Collect before the end of the shift if an event type has this many new records.", minimum=1
    )
    max_records: int = setting(4_000_000, "The most records of an event type to collect at once.", minimum=1)
    file_bytes: int = setting(128_000_000, "The size of files; smaller ones are merged up to it.", minimum=1)


class ArchiveSections(LogSections, Protocol):
    """The sections that the archive reads; its ledger is in the database of the catalog."""

    @property
    def archive(self) -> ArchiveSettings: ...
