"""The coordination port: locks, a version and membership, shared by all processes.

Coordination makes processes react quickly. It does not decide anything: a process that acts on it checks the
catalog as well. Every engine stores the same data:

    version: 7                    grows by one with every announcement
    locked_et/<name>: <value>     a lock on an event type; removed when its session ends
    nodes/<node>: <value>         a member; removed when its session ends
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Coordination(ABC):
    """The session of one process. Thread-safe.

    Locks and membership belong to the session. The session expires when the process dies, or sleeps or is
    disconnected for longer than the session timeout; then other processes see its locks and its membership vanish.
    A new session starts by itself, but locks and membership are not restored. `sure` says whether they are valid.
    """

    @abstractmethod
    def join(self, node: str, value: str) -> None:
        """Become a member. The id must be unique to this process; join with it again after a lost session."""

    @abstractmethod
    def update(self, value: str) -> None:
        """Change this member's value. LeaseLost if it is no longer a member."""

    @abstractmethod
    def members(self) -> dict[str, str]:
        """The value of every member, by id."""

    @abstractmethod
    def version(self) -> int:
        """The current version; 0 before the first announcement."""

    @abstractmethod
    def bump(self) -> int:
        """Increase the version by one and return it. Concurrent calls get different versions."""

    @abstractmethod
    def lock(self, name: str, value: str) -> bool:
        """Take the lock of that name. False if any session holds it, including this one."""

    @abstractmethod
    def relock(self, name: str, value: str) -> None:
        """Change the value of a lock. LeaseLost if this session does not hold it any more."""

    @abstractmethod
    def unlock(self, name: str) -> None:
        """Release a lock. Does nothing if this session does not hold it."""

    @abstractmethod
    def locks(self) -> dict[str, str]:
        """The value of every lock, by name."""

    @abstractmethod
    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back soon after the version, a lock, a member or `sure` has changed, in any thread.

        Returns a function that ends this. A call may come without a change. Every change causes a call, even if
        it happened while the connection was lost.
        """

    @abstractmethod
    def sure(self) -> bool:
        """Whether other processes certainly still see this session. False in case of doubt; no round trip.

        The time is counted from when the last answered heartbeat was sent, on a clock that runs while the machine
        sleeps. After a lost session the answer stays false until the process has joined again and released every
        lost lock, so that a caller that checks before and after its work cannot miss the loss.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session. Its membership and locks vanish at once."""
