"""The schedule as the server in the same process uses it: deliveries that hold no thread while they wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from strandline.schedule.model import Lease
from strandline.schedule.room import ScheduleMessages, Schedules

#: Gets new leases, or the error that ended the wait. Called once, in any thread.
Pulled = Callable[[Sequence[Lease] | BaseException], None]


class PushListener(Protocol):
    """Gets what the broker has for one push session. Its methods return at once; any thread calls them."""

    def leased(self, leases: Sequence[Lease]) -> None: ...

    def fenced(self) -> None:
        """A newer session of the same consumer exists; this one gets nothing more."""


class PushSession(Protocol):
    def set_credit(self, credit: int) -> None:
        """How many leases the consumer holds at most. Does no I/O."""

    def sent(self, leases: Sequence[Lease]) -> None:
        """These leases were written to the socket. Does no I/O.

        The broker leases nothing more for a session while many bytes wait to be sent to it, and gives back what
        was never sent. A lease that is deleted or released through the room, or expires, gives its place back
        without a call.
        """

    def take_back(self, lease: Lease) -> bool:
        """Take a lease that was not written from the session, if it is beyond the credit or has expired.

        Returns whether it must be given back, with `give_back`. Does no I/O.
        """

    def close(self) -> None:
        """End the session. Leases that were not reported as sent are given back. May wait for the store."""


class ServedMessages(ScheduleMessages):
    @abstractmethod
    def start_pull(
        self, consumer: str, lease_ms: int, limit: int, wait_ms: int, done: Pulled
    ) -> Callable[[], None]:
        """`pull` without a thread that waits. Returns a function that ends the wait early with no leases.

        May wait for the store: not for an event loop. `done` may be called before this returns.
        """

    @abstractmethod
    def give_back(self, leases: Sequence[Lease]) -> None:
        """End leases that their consumer never saw: they do not count as deliveries. May wait for the store."""

    @abstractmethod
    def open_push(self, consumer: str, lease_ms: int, credit: int, listener: PushListener) -> PushSession:
        """Begin a push session. May wait for the store: not for an event loop.

        The listener may be called before this returns.
        """


class ServedSchedules(Schedules):
    @abstractmethod
    def of(self, name: str) -> ServedMessages: ...

    @abstractmethod
    def now_ms(self) -> int:
        """The time of the database, which decides when leases end. Does no I/O."""

    @abstractmethod
    def ping(self, client: str, client_ms: int, received_ms: int) -> int:
        """Note the clock of a client. `received_ms` is when its ping arrived, on the clock of this node.

        Returns the time for the answer, by the database's clock. Does no I/O.
        """
