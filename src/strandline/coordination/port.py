"""The coordination port: what processes need of each other to change something together.

It makes things fast and fair, it decides nothing: whoever acts on what it says asks the catalog as well. Its
data look like this, in every engine:

    version: 7                    grows by one with every announcement
    locked_et/<name>: <value>     a lock on an event type, gone with its owner
    nodes/<node>: <value>         a member, gone with its process
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Coordination(ABC):
    """One process's session. Thread-safe.

    Locks and membership belong to the session: when the process dies, sleeps longer than the session timeout or
    loses its connection for that long, others see them vanish. The session comes back by itself; what was lost
    with it does not: `sure` says whether it may still be relied on.
    """

    @abstractmethod
    def join(self, node: str, value: str) -> None:
        """Become a member under an id that is used once; again after the session was lost."""

    @abstractmethod
    def update(self, value: str) -> None:
        """Change this member's value. LeaseLost if it is no longer a member."""

    @abstractmethod
    def members(self) -> dict[str, str]:
        """The value of every live member by id."""

    @abstractmethod
    def version(self) -> int:
        """The current version; 0 before the first announcement."""

    @abstractmethod
    def bump(self) -> int:
        """Raise the version by one and return it; concurrent calls get different ones."""

    @abstractmethod
    def lock(self, name: str, value: str) -> bool:
        """Take the lock of that name; False if somebody has it, this session included."""

    @abstractmethod
    def relock(self, name: str, value: str) -> None:
        """Change the value of a lock this session holds. LeaseLost if it does not hold it any more."""

    @abstractmethod
    def unlock(self, name: str) -> None:
        """Let go of a lock; one that is not, or no longer, this session's stays untouched."""

    @abstractmethod
    def locks(self) -> dict[str, str]:
        """The value of every lock by name."""

    @abstractmethod
    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, from some thread, soon after the version, a lock, a member or `sure` changed.

        Returns how to stop. Calls may come without news; news never come without a call, also after a lost
        connection is back.
        """

    @abstractmethod
    def sure(self) -> bool:
        """Whether others certainly still see this session: false as soon as there is doubt, without a round trip.

        Counted from when the last answered heartbeat was sent, on a clock that runs while the machine sleeps.
        After a lost session it stays false until the membership was joined again and every lost lock let go, so
        that nobody who looks before and after can miss the loss.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave: membership and locks are gone at once."""
