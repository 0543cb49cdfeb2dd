"""The ledger port: the progress of the archive, its files, and which periods are complete.

The ledger decides and the files follow: a file that it lists exists or will exist, and a file that it does not
list exists only in staging. The entries of an event type are changed under a claim on it. A process whose claim
was taken over gets LeaseLost and changes nothing. Every method is one transaction. Thread-safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from strandline.archive.model import (
    ArchivedFile,
    Barrier,
    Claim,
    Decision,
    Hour,
    Period,
    Standing,
    Term,
)


class Leases(ABC):
    """Divides the work among processes. Correctness does not depend on leases but on claims.

    The leases of a process expire if it does not renew them in time.
    """

    @abstractmethod
    def renew(self, owner: str, told: str = "") -> None:
        """Renew all leases of a process; `told` is its progress report, which `owners` returns."""

    @abstractmethod
    def owners(self) -> dict[str, str]:
        """The last report of every live process, by its name."""

    @abstractmethod
    def take(self, owner: str, name: str) -> bool:
        """Lease a name that is free or already the owner's; False if another live process has it."""

    @abstractmethod
    def release(self, owner: str, name: str) -> None:
        """End a lease; a lease of another owner is not changed."""

    @abstractmethod
    def leave(self, owner: str) -> None:
        """End all leases of a process and forget the process."""


class HourBook(ABC):
    """Hours of event types: barriers, and flags with their revisions."""

    @abstractmethod
    def between(self, from_ms: int, to_ms: int, event_type: str | None = None) -> list[Hour]:
        """The stored hours of that span (the end is not included), by event type and time."""

    @abstractmethod
    def set_barrier(self, claim: Claim, hours_ms: Collection[int], barrier: Barrier, grace_ms: int) -> None:
        """Store the barrier for each hour that has none; an existing barrier stays.

        Invalid, with nothing stored, if it was read before the end of an hour plus the grace, or in the future of
        the ledger's clock.
        """

    @abstractmethod
    def flag(self, claim: Claim, hour_ms: int, path: str) -> Hour:
        """Decide that an hour is complete, in the directory `path`: revision 1, or one more after late files.

        Idempotent if nothing has changed. Conflict if one of the hour's files is not published.
        """

    @abstractmethod
    def confirm(self, claim: Claim, hour_ms: int, revision: int) -> None:
        """Store that the flags of that revision, or of a later one, are in the files."""

    @abstractmethod
    def unwritten(self, event_type: str) -> list[Hour]:
        """Hours whose flags are decided but not confirmed, or stale, oldest first."""


class PeriodBook(ABC):
    """The directories of hours and days of many event types. They need no claim; revisions only grow."""

    @abstractmethod
    def unsettled(self) -> dict[str, int]:
        """The start of every directory, by its path, whose flag is confirmed but not yet settled."""

    @abstractmethod
    def revisions(self, paths: Collection[str]) -> dict[str, int]:
        """The confirmed revision of every one of these directories that has a flag."""

    @abstractmethod
    def flag(self, path: str, start_ms: int, children: Mapping[str, int]) -> Period:
        """Decide that a directory is complete with these revisions of the directories in it.

        The revision grows if the children have changed. Conflict if a child has a lower revision than before: a
        later state was flagged already.
        """

    @abstractmethod
    def confirm(self, period: Period) -> None:
        """Store that the flag of that revision is in the files."""

    @abstractmethod
    def settle(self, children: Mapping[str, int]) -> None:
        """Store that these revisions are listed in the flags of the directories above, if there are any."""

    @abstractmethod
    def unwritten(self) -> list[Period]:
        """Periods whose flags are decided but not confirmed, oldest first."""

    @abstractmethod
    def between(self, from_ms: int, to_ms: int) -> list[Period]:
        """Periods that start in that span (the end is not included), by path."""


class Ledger(ABC):
    leases: Leases
    hours: HourBook
    periods: PeriodBook

    @abstractmethod
    def now_ms(self) -> int:
        """The ledger's clock, which shifts and barriers use."""

    @abstractmethod
    def terms(self) -> list[Term]:
        """The spans for which event types are or were configured, by name and time."""

    @abstractmethod
    def open_term(self, event_type: str, from_ms: int) -> None:
        """Store that an event type is configured from that hour on; does nothing if it already is configured."""

    @abstractmethod
    def close_term(self, event_type: str, to_ms: int) -> None:
        """Store that an event type is no longer configured from that hour on. NotFound if it is not configured."""

    @abstractmethod
    def claim(self, event_type: str, entry_id: str) -> Claim:
        """Claim an event type; the claim of any other process ends.

        Another `entry_id` than before means that the event type was deleted and created again. Then its positions
        and the barriers of unflagged hours are deleted; its files and flags stay.
        """

    @abstractmethod
    def standing(self, event_type: str) -> Standing | None:
        """The progress of an event type; None if it was never claimed."""

    @abstractmethod
    def decide(self, claim: Claim, decision: Decision) -> None:
        """List files as publishing and store the new positions. From now on the files will be published.

        Invalid if a record that was read is neither in one of the files nor counted as dropped. Conflict, with
        nothing changed, if the stored position of a partition is not where the decision starts, if a file is
        listed already, if a `data` file is for a flagged hour, or if a `late` file is for an hour that is not
        flagged.
        """

    @abstractmethod
    def publishing(self, event_type: str) -> list[ArchivedFile]:
        """Decided files that are not published yet, by name."""

    @abstractmethod
    def published(self, claim: Claim, paths: Sequence[str]) -> None:
        """Store that these files are published."""

    @abstractmethod
    def files(self, event_type: str, hour_ms: int) -> list[ArchivedFile]:
        """The published files of an hour, by name; quarantine files belong to no hour."""

    @abstractmethod
    def close(self) -> None:
        """Close connections."""
