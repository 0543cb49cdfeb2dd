"""What a process knows about its own session without a round trip."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.clock import boot_ms


@dataclass(frozen=True)
class Beat:
    """The last heartbeat that was answered: its session, and when it was sent."""

    session: str
    sent_ms: int
    lease_ms: int

    def fresh(self) -> bool:
        """Whether the session has certainly not expired, with a third of the lease as a safety margin.

        The margin covers small differences between clocks. It also covers a server that crashes after it has
        answered a heartbeat and before it has passed it on: ZooKeeper's followers do that every half tick, and
        a lease is at least two ticks.
        """
        return boot_ms() - self.sent_ms < self.lease_ms * 2 // 3


class Holdings:
    """The locks and the membership that this process believes it holds, each with the session it was taken in.

    Callers must serialise `take` and `drop`; reading needs no lock.
    """

    def __init__(self) -> None:
        self._session_of: dict[str, str] = {}

    def take(self, thing: str, session: str) -> None:
        self._session_of = {**self._session_of, thing: session}

    def drop(self, thing: str) -> None:
        self._session_of = {key: value for key, value in self._session_of.items() if key != thing}

    def session_of(self, thing: str) -> str | None:
        return self._session_of.get(thing)

    def sure(self, beat: Beat | None) -> bool:
        """Whether other processes certainly still see the session of `beat` and all that was taken.

        False while anything was taken in an earlier session and is neither taken again nor dropped. Otherwise a
        process that sleeps during the loss could check before and after it, and miss it.
        """
        return beat is not None and {*self._session_of.values()} <= {beat.session} and beat.fresh()
