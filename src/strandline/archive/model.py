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

#: `data` and `late` files belong to an hour; `quarantine` holds what could not be archived.
Kind = Literal["data", "late", "quarantine"]
LatePolicy = Literal["append", "quarantine", "drop"]
ReadyRule = Literal["barrier", "timestamps"]
Lost = Literal["earliest", "latest"]


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
    """What the ledger keeps of a partition: consumed up to where, and its last finished shift.

    Before the first shift is finished there is a position at most; `max_timestamp_ms` is −1 then.
    """

    position: Position
    max_timestamp_ms: int = -1
    shift: int = 0
    start_ms: int = -1
    end_ms: int = -1


class StagedFile(msgspec.Struct, frozen=True):
    """A file in `_staging`, complete and durable. `hour_ms` is −1 for what belongs to no hour."""

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


class Harvest(msgspec.Struct, frozen=True):
    """What a task made of one range of a partition: every row that it read is in one of the files."""

    partition: int
    rows: int
    max_time_ms: int
    files: tuple[StagedFile, ...]


class ArchivedFile(msgspec.Struct, frozen=True):
    """A file as the ledger lists it and as manifests name it: `path` is relative to the archive's root."""

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
    min_time_ms: int
    max_time_ms: int
    #: Where it was written; of no interest once it is published.
    staged: str = ""


class Counts(msgspec.Struct, frozen=True):
    """Every record that was read went exactly one way; `skipped` were gone before they could be read."""

    read: int = 0
    archived: int = 0
    late: int = 0
    quarantined: int = 0
    dropped: int = 0
    skipped: int = 0

    @property
    def balanced(self) -> bool:
        return self.read == self.archived + self.late + self.quarantined + self.dropped


class Decision(msgspec.Struct, frozen=True):
    """One step of an event type: files, and what is stored for every partition with them.

    `before` is where each partition stood; `read_ms` is when the partitions there are were looked up.
    """

    before: Mapping[int, Position | None]
    stored: Mapping[int, StoredPartition]
    files: tuple[ArchivedFile, ...]
    counts: Counts
    read_ms: int


class Claim(msgspec.Struct, frozen=True):
    """The right to change an event type's part of the ledger, until somebody claims it after us.

    `incarnation` counts how often an event type of this name was made anew.
    """

    event_type: str
    epoch: int
    incarnation: int = 1


class Standing(msgspec.Struct, frozen=True):
    """How far the archive of an event type is.

    `read_ms` is when the partitions were looked up for the newest decision, which gave each a position: one
    without came to exist after that. `flagged_ms` is the newest flagged hour. Both are −1 before there is one.
    """

    epoch: int
    incarnation: int
    read_ms: int
    flagged_ms: int
    partitions: Mapping[int, StoredPartition]
    counts: Counts


class Term(msgspec.Struct, frozen=True):
    """From which hour to which (exclusive; None is open) an event type is configured."""

    event_type: str
    from_ms: int
    to_ms: int | None = None

    def covers(self, hour_ms: int) -> bool:
        return self.from_ms <= hour_ms and (self.to_ms is None or hour_ms < self.to_ms)


class Barrier(msgspec.Struct, frozen=True):
    """The end of every partition, read at `read_ms` or later by the ledger's clock."""

    read_ms: int
    ends: Mapping[int, Position]


class Hour(msgspec.Struct, frozen=True):
    """What the ledger knows of an hour: revision 0 is unflagged, `written` what surely is in the files.

    `stale`: files came after the newest revision was decided.
    """

    event_type: str
    hour_ms: int
    revision: int = 0
    written: int = 0
    stale: bool = False
    barrier: Barrier | None = None
    flagged_ms: int = -1
    #: That of the claim under which the revision was decided.
    epoch: int = 0


class Period(msgspec.Struct, frozen=True):
    """A directory above those of event types, and the revisions of what was in it when it was flagged."""

    path: str
    start_ms: int
    revision: int
    written: int
    children: Mapping[str, int]
