"""The archive room as its users see it: which hours are complete, whether files are in order, replays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from strandline.archive.model import Counts
from strandline.archive.replay import Replayed
from strandline.archive.verify import HourCheck

#: `ready`: flagged. `due`: has ended, is not complete yet, `reason` says why. `open`: has not ended yet.
HourState = Literal["ready", "due", "open"]


class HourStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cell of the grid."""

    hour: str
    state: HourState
    revision: int = 0
    reason: str = ""


class PartitionStatus(msgspec.Struct, frozen=True):
    """Archived up to where, and the last finished shift."""

    partition: str
    cursor: str
    max_timestamp: str | None
    shift: int
    unarchived_events: int | None


class ArchiveStatus(msgspec.Struct, frozen=True):
    """One event type: its hours, oldest first, its partitions, and where every record went."""

    event_type: str
    epoch: int
    retired: bool
    hours: tuple[HourStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    counts: Counts


class PeriodStatus(msgspec.Struct, frozen=True):
    """A flagged directory above those of event types."""

    path: str
    start: str
    revision: int


class Archive(ABC):
    """What the archive of this platform holds. Thread-safe and synchronous. Times are milliseconds, UTC."""

    @abstractmethod
    def status(self, from_ms: int, to_ms: int) -> list[ArchiveStatus]:
        """Every event type that was configured in that span (the end is not included), by name."""

    @abstractmethod
    def periods(self, from_ms: int, to_ms: int) -> list[PeriodStatus]:
        """Flagged hours and days that begin in that span, by path."""

    @abstractmethod
    def verify(self, event_type: str, from_ms: int, to_ms: int) -> Iterator[HourCheck]:
        """Hold every flagged hour of the span against its flag and the ledger, oldest first; reads all files."""

    @abstractmethod
    def replay(self, event_type: str, from_ms: int, to_ms: int, into: str) -> Iterator[Replayed]:
        """Publish the archived events of all configured hours of the span into an event type, hour by hour.

        Conflict if one is not ready. Events come again if it is repeated; they keep their `eid`.
        """

    @abstractmethod
    def retire(self, event_type: str, to_ms: int | None = None) -> None:
        """Do not archive an event type any more from that hour on; by default from the next one.

        Hours before it are still flagged; if the event type is gone, only those that are flagged already count.
        Conflict if the settings still name it.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""


def configured(text: str, existing: Sequence[str]) -> list[str]:
    """The event types that a setting like `a,b`, `*` or `*,-c` names."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    left_out = {part[1:] for part in parts if part.startswith("-")}
    named = [part for part in parts if not part.startswith("-") and part != "*"]
    return sorted({*named, *(existing if "*" in parts else ())} - left_out)
