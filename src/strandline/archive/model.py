"""The values of the archive. Inside the room an hour or a day is its first millisecond, UTC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from strandline.clock import parse_rfc3339, to_rfc3339
from strandline.errors import Invalid
from strandline.log.cursors import Position

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

#: `data` and `late` files belong to an hour; `quarantine` files hold records that could not be archived.
Kind = Literal["data", "late", "quarantine"]
LatePolicy = Literal["append", "quarantine", "drop"]
ReadyRule = Literal["barrier", "timestamps"]
Lost = Literal["earliest", "latest"]
OnGap = Literal["flag", "hold"]


def hour_of(ms: int) -> int:
    return ms - ms % HOUR_MS


def day_of(ms: int) -> int:
    return ms - ms % DAY_MS


#: How users name an hour: `2026-11-15T12`, UTC, or a datetime with a time zone.
HourName = str | datetime

HOUR_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}$"


def hour_name(hour_ms: int) -> str:
    return to_rfc3339(hour_ms)[:13]


def parse_hour(hour: HourName) -> int:
    """The first millisecond of an hour. Invalid for other texts, and for times that do not start an hour."""
    text = hour.isoformat() if isinstance(hour, datetime) else hour
    try:
        hour_ms = parse_rfc3339(f"{text}:00:00Z" if re.match(HOUR_PATTERN, text) else text)
    except ValueError:
        hour_ms = None
    if hour_ms is None or hour_ms % HOUR_MS:
        raise Invalid(f"{text!r:.60} is not the start of an hour; write it like 2026-11-15T12 (UTC)")
    return hour_ms


class StoredPartition(msgspec.Struct, frozen=True):
    """What the ledger stores for a partition: how far it is consumed, and its last finished shift.

    Before the first shift is finished only the position is set; the other fields have their defaults.
    """

    position: Position
    max_timestamp_ms: int = -1
    shift: int = 0
    start_ms: int = -1
    end_ms: int = -1


class StagedFile(msgspec.Struct, frozen=True):
    """A file in `_staging`, complete and durable. `hour_ms` is −1 for quarantined records."""

    path: str
    kind: Kind
    hour_ms: int
    partition: int
    timeline: int
    first: int
    last: int
    rows: int
    bytes: int
    sha256: str
    min_time_ms: int = -1
    max_time_ms: int = -1


class ArchivedFile(StagedFile, frozen=True):
    """The file under its final path, as the ledger and the manifests list it; `staged` is the path before."""

    staged: str = ""


class Harvest(msgspec.Struct, frozen=True):
    """The result of a task for one range of a partition: every row that it read is in exactly one of the files."""

    partition: int
    rows: int
    max_time_ms: int
    files: tuple[StagedFile, ...]


class Counts(msgspec.Struct, frozen=True):
    """Each record read is counted in exactly one other field; `skipped` records expired before they were read."""

    read: int = 0
    archived: int = 0
    late: int = 0
    quarantined: int = 0
    dropped: int = 0
    skipped: int = 0

    @property
    def balanced(self) -> bool:
        return self.read == self.archived + self.late + self.quarantined + self.dropped


class ExpiredRange(msgspec.Struct, frozen=True):
    """Records of a partition that expired before they were archived: those after `after` up to `last`.

    Each hour from `from_ms` to `to_ms`, both included, may lack some of them: it had no flag when the gap was
    found, and it began before the oldest record that is left was published. `after` is None for the beginning.
    """

    partition: int
    after: Position | None
    last: Position
    records: int
    from_ms: int
    to_ms: int


class Decision(msgspec.Struct, frozen=True):
    """One step of an event type: new files, and the new state of every partition, stored in one transaction.

    `before` is the position of each partition before the step; `read_ms` is when the list of partitions was read.
    """

    before: Mapping[int, Position | None]
    stored: Mapping[int, StoredPartition]
    files: tuple[ArchivedFile, ...]
    counts: Counts
    read_ms: int
    gaps: tuple[ExpiredRange, ...] = ()


class Claim(msgspec.Struct, frozen=True):
    """The right to change an event type's part of the ledger, until another process claims the event type.

    `incarnation` counts how many event types of this name there have been.
    """

    event_type: str
    epoch: int
    incarnation: int = 1


class Standing(msgspec.Struct, frozen=True):
    """How far the archive of an event type is.

    `read_ms` is when the list of partitions was read for the newest decision. The decision stored a position for
    each of them, so a partition without one was created later. `flagged_ms` is the newest flagged hour. Both are
    −1 at first.
    """

    epoch: int
    incarnation: int
    read_ms: int
    flagged_ms: int
    partitions: Mapping[int, StoredPartition]
    counts: Counts


class Term(msgspec.Struct, frozen=True):
    """The span of hours for which an event type is configured; `to_ms` is exclusive, None if it has no end yet."""

    event_type: str
    from_ms: int
    to_ms: int | None = None

    def covers(self, hour_ms: int) -> bool:
        return self.from_ms <= hour_ms and (self.to_ms is None or hour_ms < self.to_ms)


class Location(msgspec.Struct, frozen=True):
    """Where the hours of an event type are: the setting `archive.root`, and the template with the type's name."""

    root: str
    template: str


class Barrier(msgspec.Struct, frozen=True):
    """The end of every partition, read at `read_ms` or later by the ledger's clock."""

    read_ms: int
    ends: Mapping[int, Position]


class Hour(msgspec.Struct, frozen=True):
    """What the ledger stores for an hour.

    `revision` is that of the newest flag, 0 if there is none; `written` is the revision that is confirmed to be in
    the files. `stale`: files were added after the newest revision was decided.
    """

    event_type: str
    hour_ms: int
    revision: int = 0
    written: int = 0
    stale: bool = False
    barrier: Barrier | None = None
    flagged_ms: int = -1
    #: The epoch of the claim under which the revision was decided.
    epoch: int = 0


class Period(msgspec.Struct, frozen=True):
    """A flagged directory that holds the directories of event types or hours, and their revisions at that time."""

    path: str
    start_ms: int
    revision: int
    written: int
    children: Mapping[str, int]
