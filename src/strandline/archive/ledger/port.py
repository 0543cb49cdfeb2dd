"""The ledger port: the progress of the archive, its files, and which periods are complete.

The ledger is the source of truth and the files follow it: a file that it lists is published or will be, and a
file that it does not list is only in staging. All changes to an event type are made under a claim on it. A method
that is called with a replaced claim raises LeaseLost and changes nothing. Every method is one transaction.
Thread-safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from strandline.archive.model import (
    ArchivedFile,
    Barrier,
    Claim,
    Decision,
    ExpiredRange,
    Hour,
    Location,
    Period,
    Standing,
    Term,
)


class Leases(ABC):
    """Which process does what, so that processes share the work. They expire if a process does not renew them.

    Leases only make double work rare. Claims make it harmless.
    """

    @abstractmethod
    def renew(self, owner: str, progress: str = "") -> None:
        """Extend all leases of a process, or register it; `owners` returns the progress."""

    @abstractmethod
    def owners(self) -> dict[str, str]:
        """The latest progress of every process that is alive, by owner."""

    @abstractmethod
    def take(self, owner: str, name: str) -> bool:
        """Take a lease that is free or that the owner has already.

        False if another process that is alive has it, or if the owner is not registered.
        """

    @abstractmethod
    def release(self, owner: str, name: str) -> None:
        """Release a lease. No effect if another process has it."""

    @abstractmethod
    def leave(self, owner: str) -> None:
        """Release all leases and remove the process."""


class HourBook(ABC):
    """Hours of event types: barriers, and flags with their revisions."""

    @abstractmethod
    def between(self, from_ms: int, to_ms: int, event_type: str | None = None) -> list[Hour]:
        """The known hours that start in that span (the end is excluded), by event type and time."""

    @abstractmethod
    def set_barrier(self, claim: Claim, hours_ms: Collection[int], barrier: Barrier, grace_ms: int) -> None:
        """Record the barrier of each hour that has none; an existing barrier is kept.

        Invalid, with nothing recorded, if it was read before the end of an hour plus the grace, or if its read
        time is in the future by the ledger's clock.
        """

    @abstractmethod
    def flag(self, claim: Claim, hour_ms: int, path: str) -> Hour:
        """Decide that an hour is complete, in the directory `path`.

        The revision is 1 at first. It grows by one if late files were added since; otherwise nothing changes.
        Conflict if one of its files is not published.
        """

    @abstractmethod
    def confirm(self, claim: Claim, hour_ms: int, revision: int) -> None:
        """Record that the flags of that revision are in the files. A recorded later revision is kept."""

    @abstractmethod
    def unwritten(self, event_type: str) -> list[Hour]:
        """Hours whose flags are not confirmed, or whose late files need another revision; oldest first."""

    @abstractmethod
    def with_data(self, event_type: str) -> list[Hour]:
        """Hours that have data files, or lack records because of a gap, and have no flag; oldest first."""

    @abstractmethod
    def gaps(self, event_type: str, first_ms: int, last_ms: int) -> list[ExpiredRange]:
        """The gaps because of which hours from `first_ms` to `last_ms`, both included, may lack records.

        Those of an hour do not change after its flag, so a revision always lists the same.
        """

    @abstractmethod
    def newest_path(self, event_type: str) -> tuple[int, str] | None:
        """The newest flagged hour and its directory; None if no hour is flagged."""


class PeriodBook(ABC):
    """The directories above: hours and days of many event types. They need no claim; revisions only grow."""

    @abstractmethod
    def unsettled(self) -> dict[str, int]:
        """The start of every directory whose flag is confirmed and not yet settled, by path."""

    @abstractmethod
    def revisions(self, paths: Collection[str]) -> dict[str, int]:
        """The confirmed revision of each of these directories that has one, by path."""

    @abstractmethod
    def flag(self, path: str, start_ms: int, children: Mapping[str, int]) -> Period:
        """Decide that a directory is complete with these revisions of the directories in it.

        The revision grows by one if they differ from the recorded ones. Conflict if one of them is older than
        recorded: another process has flagged the directory since.
        """

    @abstractmethod
    def confirm(self, period: Period) -> None:
        """Record that the flag of that revision is in the files."""

    @abstractmethod
    def settle(self, children: Mapping[str, int]) -> None:
        """Record that these revisions are in the flags of the directories above, or that there are none above."""

    @abstractmethod
    def unwritten(self) -> list[Period]:
        """Periods whose flags are decided but not confirmed, oldest first."""

    @abstractmethod
    def between(self, from_ms: int, to_ms: int) -> list[Period]:
        """Periods that start in that span (the end is excluded), by path."""


class Ledger(ABC):
    leases: Leases
    hours: HourBook
    periods: PeriodBook

    @abstractmethod
    def now_ms(self) -> int:
        """The ledger's wall clock, which shifts and barriers use."""

    @abstractmethod
    def terms(self) -> list[Term]:
        """The spans in which event types are or were configured, by name and time."""

    @abstractmethod
    def open_term(self, event_type: str, from_ms: int) -> None:
        """An event type is configured from that hour on. No effect if it already is."""

    @abstractmethod
    def close_term(self, event_type: str, to_ms: int) -> None:
        """An event type is no longer configured from that hour on, except for hours that have data and no flag.

        NotFound if it is not configured now.
        """

    @abstractmethod
    def location(self, event_type: str) -> Location | None:
        """Where the hours of an event type are; None if that was never recorded."""

    @abstractmethod
    def set_location(self, event_type: str, location: Location) -> None:
        """Record where the hours of an event type are."""

    @abstractmethod
    def claim(self, event_type: str, entry_id: str) -> Claim:
        """Claim an event type; earlier claims on it are replaced.

        A different `entry_id` than before means that the event type was deleted and created again: its positions
        and the barriers of unflagged hours are deleted, its files and flags stay.
        """

    @abstractmethod
    def standing(self, event_type: str) -> Standing | None:
        """How far the archive of an event type is; None if it was never claimed."""

    @abstractmethod
    def decide(self, claim: Claim, decision: Decision) -> None:
        """List files as publishing and store the new positions. After this call the files must be published.

        Invalid if a record that was read is neither in a file nor counted as dropped. Conflict, with nothing
        changed, if a partition is not where the decision begins, if a file is listed already, or if a file is
        `data` for a flagged hour or `late` for an unflagged one. The hours of data files become part of the event
        type's terms. A gap is about hours after the newest flagged one only.
        """

    @abstractmethod
    def publishing(self, event_type: str) -> list[ArchivedFile]:
        """Files that are decided and not published yet, by path."""

    @abstractmethod
    def published(self, claim: Claim, paths: Sequence[str]) -> None:
        """Record that these files are published. Idempotent; unknown paths are ignored."""

    @abstractmethod
    def files(self, event_type: str, hour_ms: int) -> list[ArchivedFile]:
        """The published files of an hour, by path. Quarantined files belong to no hour."""
