"""What a process may believe about its own session without asking anybody."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.clock import boot_ms


@dataclass(frozen=True)
class Beat:
    """The last heartbeat that was answered: in which session, and when it was sent."""

    session: str
    sent_ms: int
    lease_ms: int

    def fresh(self) -> bool:
        """Whether the session surely lasts: with a third of the lease to spare.

        The margin pays for clocks that differ a little, and for a server that dies with heartbeats it answered
        and did not pass on yet: ZooKeeper's do that every half tick, and a lease is at least two ticks.
        """
        return boot_ms() - self.sent_ms < self.lease_ms * 2 // 3


class Holdings:
    """What this process believes to have, and the session it got it in.

    Writers take turns by themselves; readers need no lock.
    """

    def __init__(self) -> None:
        self._session_of: dict[str, str] = {}

    def take(self, thing: str, session: str) -> None:
        self._session_of = {**self._session_of, thing: session}

    def drop(self, thing: str) -> None:
        self._session_of = {key: value for key, value in self._session_of.items() if key != thing}

    def session_of(self, thing: str) -> str | None:
        return self._session_of.get(thing)

    def all_from(self, session: str) -> bool:
        return all(taken_in == session for taken_in in self._session_of.values())


def sure(beat: Beat | None, holdings: Holdings) -> bool:
    """Whether others certainly still see the session and all that this process believes to have.

    What went with an earlier session keeps it false until it is joined again or let go: otherwise a process that
    slept through the loss could look before and after, and see the new session only.
    """
    return beat is not None and holdings.all_from(beat.session) and beat.fresh()
