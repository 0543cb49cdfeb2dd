"""The storage port of the schedule.

A store is the one clock of its schedules: every comparison with the current time uses the time of the database.
Every precondition of an operation is checked in the statement that changes the message, so that of two competing
callers one wins. Operations take batches and answer each item in the order asked; an item that is refused does not
affect the others. A schedule that does not exist is NotFound. OutcomeUnknown if a change may or may not have taken
effect: repeating the operation is harmless, because ids and versions show what happened. Thread-safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from strandline.engine.database import Signals
from strandline.engine.process_leases import ProcessLeases
from strandline.log.cursors import Position
from strandline.schedule.model import (
    ChosenMessage,
    ClockOffset,
    ItemAnswer,
    Lease,
    LeaseAct,
    Leased,
    ListQuery,
    LoadCounts,
    NewMessage,
    NextDue,
    OwnerAct,
    Schedule,
    StoredMessage,
    Taker,
)
from strandline.schedule.relay.values import OpenRecord, RelayLetter, RelayMessage, RelayRoute, TargetMark


def uncounted(leased: Leased) -> None:
    """For callers of a lease that count nothing."""


class Messages(ABC):
    """Operations on the messages of a schedule, by its name.

    `<name>.dead` names its dead messages: they can be read, listed, deleted by their owner and put back. Other
    operations on that view are a Conflict.
    """

    @abstractmethod
    def create(self, schedule: str, items: Sequence[NewMessage]) -> list[ItemAnswer]:
        """Store messages durably. A moment in the past makes a message available now.

        `already_exists` also for an id whose message was deleted within `dedupe_ms`; the version that is there is
        named only if group and body are the same, so that a repeated create can see that it succeeded.
        """

    @abstractmethod
    def lease(
        self,
        schedule: str,
        consumer: str,
        lease_ms: int,
        items: Sequence[ChosenMessage],
        counted: Callable[[Leased], None] = uncounted,
    ) -> list[Lease | ItemAnswer]:
        """Lease chosen messages that are available. Each is a lease, or the answer that refuses it.

        A message with `max_attempts` deliveries becomes dead instead and is `not_available`. `counted` gets the
        leases and the numbers of expired leases and of messages that became dead.
        """

    @abstractmethod
    def extend(self, schedule: str, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        """Move the end of active leases."""

    @abstractmethod
    def release(self, schedule: str, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        """End active leases; the messages become due at the given moments."""

    @abstractmethod
    def delete(self, schedule: str, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]:
        """Delete messages, by the holder of an active lease or by the owner. A repeated delete succeeds.

        Deleted messages leave tombstones, which `purge` removes after `dedupe_ms`.
        """

    @abstractmethod
    def move(self, schedule: str, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        """Move messages that are not being processed to other moments, for their owner."""

    @abstractmethod
    def put_back(self, schedule: str, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        """Make dead messages available now, with no deliveries, for their owner."""

    @abstractmethod
    def get(self, schedule: str, message_id: str) -> StoredMessage | None:
        """A message without its body. A dead one is only found in the view of dead messages."""

    @abstractmethod
    def read(self, schedule: str, claim: LeaseAct | OwnerAct) -> Lease | None:
        """A message with its body, for its owner or the holder of an active lease. None if there is none.

        Forbidden if the claim does not give the right to the body.
        """

    @abstractmethod
    def list(self, schedule: str, query: ListQuery) -> list[StoredMessage]:
        """Messages ordered by id, at most `limit`. To continue, pass the last id as `after`."""

    @abstractmethod
    def counts(self, schedule: str, from_ms: int, to_ms: int, step_ms: int | None = None) -> LoadCounts:
        """How many messages have a moment from `from_ms` up to, not including, `to_ms`: by state and by step.

        Does not read every message of the range.
        """


def always(now_ms: int) -> bool:  # noqa: ARG001 - the signature of `may`
    return True


class DueMessages(ABC):
    """What a node calls to deliver due messages on behalf of its consumers."""

    @abstractmethod
    def lease(
        self,
        schedule: str,
        takers: Sequence[Taker],
        max_bytes: int,
        may: Callable[[int], bool] = always,
        *,
        beyond: int = 0,
    ) -> Leased:
        """Lease available messages to these consumers in one statement, oldest first, within their credit.

        A message goes to the consumer that its bucket is dealt to. What has been due for 5 ms goes to any of them.
        Messages with `max_attempts` deliveries become dead instead, and use up no credit. `beyond` is how many of
        them may be found in addition to the messages for the consumers.

        Consumers whose epoch was raised get nothing and are returned as `fenced`. No lease is longer than
        `max_lease_ms`. Bodies are about `max_bytes` in total at most, but at least one message is leased. If there
        are due messages, `may` gets the store's time before anything is leased, and can refuse all leases.
        """

    @abstractmethod
    def hand_back(
        self, schedule: str, consumer: str, epoch: int, credit: int, known: Collection[str] = ()
    ) -> Leased:
        """Return the active leases of a consumer to its new session, except the `known` ids.

        Each gets a new version and counts as a delivery, so that the old process is fenced. A message with
        `max_attempts` deliveries is not returned; its lease expires.
        """

    @abstractmethod
    def give_back(self, schedule: str, items: Sequence[LeaseAct]) -> None:
        """End leases that no consumer has seen. They do not count as deliveries; the messages are available."""

    @abstractmethod
    def still_held(self, schedule: str, items: Sequence[LeaseAct]) -> list[StoredMessage]:
        """Those of the messages that their consumers still hold, as they are now, in order."""

    @abstractmethod
    def next_due(self, schedule: str) -> NextDue:
        """When to look again. Leases count: their messages become available when they expire."""


class Sessions(ABC):
    """Which consumers are there, over all nodes. A push session lives while its node's heartbeat does."""

    @abstractmethod
    def beat(self, node: str, lives_ms: int, clock: ClockOffset) -> None:
        """Register a node and its clock, or keep it alive for that long from now."""

    @abstractmethod
    def nodes(self) -> list[ClockOffset]:
        """The clocks of all nodes that are alive, by node."""

    @abstractmethod
    def leave(self, node: str) -> None:
        """End a node and all its sessions."""

    @abstractmethod
    def open(self, schedule: str, consumer: str, node: str) -> int:
        """Begin a push session; returns its epoch, which is larger than those of the consumer's earlier sessions.

        A lease for an earlier epoch that is in progress is stored before this returns, later ones are refused.
        """

    @abstractmethod
    def close(self, schedule: str, consumer: str, epoch: int) -> None:
        """End a session. No effect if the consumer has a newer one."""

    @abstractmethod
    def attend(self, schedule: str, consumer: str, lives_ms: int) -> None:
        """A consumer that pulls is there for that long from now."""

    @abstractmethod
    def present(self, schedule: str) -> dict[str, int]:
        """The epochs of the consumers that are there, by consumer. Buckets are dealt to them."""


class RelayBook(ABC):
    """The state of relays. A relay is named by its schedule, and changes with the schedule's messages.

    Its processes have epochs: a process that takes over gets the next one, and processes with an older epoch are
    Fenced. A schedule without a relay is NotFound.
    """

    @abstractmethod
    def begin(self, route: RelayRoute) -> None:
        """Register a relay. Conflict if the schedule has another one, or a setting that a relay cannot have."""

    @abstractmethod
    def check_settings(self, schedule: Schedule) -> None:
        """Conflict if a relay uses the schedule and would lose events with these settings."""

    @abstractmethod
    def take_over(self, schedule: str) -> int:
        """The epoch of a new process; processes with an older epoch cannot lease and delete any more."""

    @abstractmethod
    def positions(self, schedule: str) -> dict[int, Position]:
        """How far each partition of the source is filled into the schedule; no entry if nothing is."""

    @abstractmethod
    def fill(
        self,
        route: RelayRoute,
        partition: int,
        after: Position | None,
        until: Position,
        messages: Sequence[RelayMessage],
        dead: Sequence[RelayLetter],
    ) -> int:
        """Create messages, keep dead letters and move the position from `after` to `until`, all or nothing.

        Messages that exist are left as they are; those that the schedule refuses become dead letters. Returns the
        number of dead letters. Conflict if the position is not `after`.
        """

    @abstractmethod
    def lease(
        self, schedule: str, epoch: int, mark: TargetMark, *, limit: int, max_bytes: int, lease_ms: int
    ) -> OpenRecord | None:
        """Lease the oldest due messages and open a record of them with the mark, all or nothing.

        Bodies are about `max_bytes` in total at most, but at least one message is leased. None if none is due.
        Conflict if a record is open.
        """

    @abstractmethod
    def record(self, schedule: str) -> OpenRecord | None:
        """The open record, with those of its messages that still exist."""

    @abstractmethod
    def close(self, schedule: str, epoch: int, record: OpenRecord, dead: Sequence[RelayLetter]) -> None:
        """Delete the messages of a record, also if they are leased, keep dead letters and close it. Idempotent."""

    @abstractmethod
    def dead_letters(self, schedule: str, limit: int, after: str = "") -> list[RelayLetter]:
        """Dead letters ordered by id, at most `limit`. To continue, pass the last id as `after`."""

    @abstractmethod
    def processes(self, lease_ms: int) -> ProcessLeases:
        """The processes of all relays. A lease is on the name of a schedule."""


class ScheduleStore(ABC):
    messages: Messages
    due: DueMessages
    sessions: Sessions
    relays: RelayBook

    @abstractmethod
    def put(self, schedule: Schedule) -> bool:
        """Create a schedule, or replace its settings. Returns whether it is new. Conflict if `buckets` changes.

        A schedule that is created again after its deletion shares nothing with the deleted one.
        """

    @abstractmethod
    def create(self, schedule: Schedule) -> bool:
        """Create a schedule. Returns False if there is one of that name, which is not changed."""

    @abstractmethod
    def get(self, name: str) -> Schedule | None:
        """The settings of a schedule."""

    @abstractmethod
    def all(self) -> list[Schedule]:
        """All schedules, by name."""

    @abstractmethod
    def delete(self, name: str) -> bool:
        """Delete a schedule and its messages. Returns whether it existed. `purge` removes the rows later."""

    @abstractmethod
    def now_ms(self) -> int:
        """The current time of the store."""

    @abstractmethod
    def fold(self) -> int:
        """Add the appended changes of counts to the counts. Returns how many there were."""

    @abstractmethod
    def purge(self, limit: int) -> int:
        """Remove up to `limit` tombstones that are older than `dedupe_ms`, or rows of deleted schedules.

        Returns how many were removed; repeat until that is less than `limit`.
        """

    @abstractmethod
    def data_version(self) -> int | None:
        """A number that differs after a change by any process; None if it would cost a round trip."""

    @abstractmethod
    def signals(self) -> Signals | None:
        """Texts between all processes that use the store; None if they cannot send any."""

    @abstractmethod
    def close(self) -> None:
        """Finish the changes that were begun. The database stays open."""
