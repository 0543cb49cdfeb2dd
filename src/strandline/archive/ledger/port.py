"""The ledger port: how far the archive is, which files there are, which periods are complete.

The ledger decides, the files follow: whatever it lists is or will be there, and what it does not list is nowhere
but in staging. Everything that belongs to an event type is changed under a claim on it; whoever was replaced gets
LeaseLost and has changed nothing. Every method is one transaction. Thread-safe.
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
    """Who does what, so that processes share the work and nobody does it twice. It decides nothing: claims do.

    A process that does not show itself in time has lost what it had.
    """

    @abstractmethod
    def renew(self, owner: str, told: str = "") -> None:
        """Show that a process lives and keep its leases; what it tells is for `owners`."""

    @abstractmethod
    def owners(self) -> dict[str, str]:
        """What every living process told last, by its name."""

    @abstractmethod
    def take(self, owner: str, name: str) -> bool:
        """Lease what is free or the owner's already; False if another living process has it."""

    @abstractmethod
    def release(self, owner: str, name: str) -> None:
        """Let others have it; what is not the owner's stays untouched."""

    @abstractmethod
    def leave(self, owner: str) -> None:
        """Let go of everything; the process is no more."""


class HourBook(ABC):
    """Hours of event types: barriers, and flags with their revisions."""

    @abstractmethod
    def between(self, from_ms: int, to_ms: int, event_type: str | None = None) -> list[Hour]:
        """What is known of hours in that span (the end is not included), by event type and time."""

    @abstractmethod
    def set_barrier(self, claim: Claim, hours_ms: Collection[int], barrier: Barrier, grace_ms: int) -> None:
        """Record the reading as the barrier of each hour that has none: the first one stays.

        Invalid, with nothing recorded, if it was read before the end of an hour plus the grace, or is said to
        have been read later than it is now by the ledger's clock.
        """

    @abstractmethod
    def flag(self, claim: Claim, hour_ms: int, path: str) -> Hour:
        """Decide that an hour is complete, in the directory `path`: revision 1, or one more if late files came.

        Again without news it stays as it is. Conflict if one of its files is not published.
        """

    @abstractmethod
    def confirm(self, claim: Claim, hour_ms: int, revision: int) -> None:
        """The flags of that revision, or of a later one, are in the files."""

    @abstractmethod
    def unwritten(self, event_type: str) -> list[Hour]:
        """Hours whose flags are decided but not confirmed, or have to be decided anew, oldest first."""


class PeriodBook(ABC):
    """The directories above: hours and days of many event types. They belong to nobody; revisions only grow."""

    @abstractmethod
    def unsettled(self) -> dict[str, int]:
        """The start of every directory, by its path, whose flag surely is in the files and not yet settled."""

    @abstractmethod
    def revisions(self, paths: Collection[str]) -> dict[str, int]:
        """The revision that is surely in the files of every directory that has a flag."""

    @abstractmethod
    def flag(self, path: str, start_ms: int, children: Mapping[str, int]) -> Period:
        """Decide that a directory is complete with these revisions of the directories in it.

        The revision grows if they are other ones than before. Children that have gone back since are Conflict:
        somebody has flagged it later.
        """

    @abstractmethod
    def confirm(self, period: Period) -> None:
        """The flag of that revision is in the files."""

    @abstractmethod
    def settle(self, children: Mapping[str, int]) -> None:
        """These revisions of directories are in the flags above them, or nothing is above them."""

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
        """The ledger's clock, by which shifts and barriers go."""

    @abstractmethod
    def terms(self) -> list[Term]:
        """Which event types are or were configured when, by name and time."""

    @abstractmethod
    def open_term(self, event_type: str, from_ms: int) -> None:
        """An event type is configured from that hour on; one that is already stays as it is."""

    @abstractmethod
    def close_term(self, event_type: str, to_ms: int) -> None:
        """An event type is not configured any more from that hour on. NotFound if it is not now."""

    @abstractmethod
    def claim(self, event_type: str, entry_id: str) -> Claim:
        """Take an event type over from whoever had it.

        With another identity than before it was deleted and made anew: its positions and the barriers of
        unflagged hours are forgotten, its files and flags stay.
        """

    @abstractmethod
    def standing(self, event_type: str) -> Standing | None:
        """How far an event type is; None if it was never claimed."""

    @abstractmethod
    def decide(self, claim: Claim, decision: Decision) -> None:
        """List files as publishing, with the new positions: from now on they will be published, come what may.

        Invalid if a record that was read is neither in one of them nor counted as dropped. Conflict, with nothing
        changed, if a partition does not stand where the decision begins, if a file is listed already, or if one
        is `data` for a flagged hour or `late` for another one.
        """

    @abstractmethod
    def publishing(self, event_type: str) -> list[ArchivedFile]:
        """Files that are decided and not published yet, in the order of their names."""

    @abstractmethod
    def published(self, claim: Claim, paths: Sequence[str]) -> None:
        """These files are at their places."""

    @abstractmethod
    def files(self, event_type: str, hour_ms: int) -> list[ArchivedFile]:
        """The published files of an hour, in the order of their names; what is in quarantine is of none."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""
