"""The storage port: what every storage of records promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import msgspec
import pyarrow as pa

from strandline.errors import Damaged, NotFound, StrandlineError
from strandline.log.records import NewRecords
from strandline.room import Durations

#: In `Placed.offsets`: certainly not stored, and unknown whether stored.
FAILED = -1
UNKNOWN = -2


class Placed(msgspec.Struct, frozen=True):
    """The outcome of one partition's records of an append.

    `offsets[i]` is the offset of record i, FAILED or UNKNOWN; `error` is the reason for FAILED or UNKNOWN.
    """

    offsets: Sequence[int]
    error: StrandlineError | None = None

    @property
    def complete(self) -> bool:
        return self.error is None


class Bounds(msgspec.Struct, frozen=True):
    """The oldest offset that a partition still has and the newest that it ever had; 0 and −1 without records."""

    first: int
    last: int


class Fence(msgspec.Struct, frozen=True):
    """A name, and the number of its holder. Every new holder gets a higher epoch."""

    name: str
    epoch: int


class Storage(ABC):
    """Topics of records in partitions.

    Thread-safe. Offsets of a partition grow in the order of appends and may have gaps. Records that `append` has
    placed survive any crash. The caller never reuses a topic name.
    """

    def check_ready(self) -> None:  # noqa: B027 - an engine inside this process has nothing to ask
        """Return if the storage can be used now. Unavailable, after a few seconds at most, if it cannot."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, retention_ms: int | None) -> None:
        """Create an empty topic. Idempotent, also after a crash in the middle.

        Without a retention time, records do not expire.
        """

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its records. Idempotent."""

    def make_ready(self, topic: str) -> None:
        """Look up the topic and connect to it, so that its first append does not wait for this."""
        self.bounds(topic)

    @abstractmethod
    def append(
        self, topic: str, batches: Mapping[int, NewRecords], *, waits: bool = False
    ) -> Future[dict[int, Placed]]:
        """Start to store the records of each partition and return at once. An append cannot be cancelled.

        The future has the outcome of each partition's records, once they are durable. Appends that are started one
        after the other are stored in that order in every partition. Records for a partition that the topic does
        not have are `FAILED`; the other records are stored. If the future fails with `Sealed`, `NotFound`,
        `StorageFull`, `Unavailable` or `Damaged`, nothing is stored. If it fails with `OutcomeUnknown`, everything
        may or may not be stored, and the storage does not retry.

        `waits`: the caller waits for the result next, so the storage may do the work in the caller's thread then.
        """

    def try_append(
        self,
        topic: str,  # noqa: ARG002 - for engines that can do it
        batches: Mapping[int, NewRecords],  # noqa: ARG002 - same
    ) -> dict[int, Placed] | None:
        """Append in this thread, without the cost of a future. Raises the errors of `append`.

        None if nothing was started: because the append would have to wait, or because the topic cannot be sealed
        and the caller has to check more after it.
        """
        return None

    @abstractmethod
    def read(self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch:
        """The records from `offset` on that exist now, within the limits, but at least one if there is one.

        A `records.READ` batch; empty at the end. An offset before the first one counts as the first. NotFound if
        the topic or partition does not exist. Damaged if the record at `offset` is not what was stored; the error
        names the range that cannot be read, and the records before and after it can be read.
        """

    def bounds(self, topic: str) -> list[Bounds]:
        """First and last offset of every partition."""
        return self.bounds_of([topic])[0]

    @abstractmethod
    def bounds_of(self, topics: Sequence[str]) -> list[list[Bounds]]:
        """The bounds of several topics, in one request if possible. NotFound if one of them does not exist."""

    def end(self, topic: str, partition: int) -> int:
        """The offset after the newest record, read after the call began. NotFound as in `read`."""
        bounds = self.bounds(topic)
        if partition >= len(bounds):
            raise NotFound(f"the topic has no partition {partition}")
        return bounds[partition].last + 1

    @abstractmethod
    def find(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The offset of the first record whose timestamp is at or after the given one, else last + 1."""

    def find_damage(self, topic: str) -> Iterator[Damaged]:  # noqa: ARG002 - most engines check by themselves
        """Read the whole topic. Returns an error for every range of records that `read` refuses as damaged."""
        return iter(())

    def damaged_batches(self) -> Mapping[str, int]:
        """How many damaged batches were found since the storage was opened, by topic."""
        return {}

    def stored_bytes(self) -> Mapping[str, int]:
        """The size on the disk of every topic, as far as this process can see it. Cheap: reads no records."""
        return {}

    def commit_times(self) -> Durations | None:
        """How long commits of appends took since the storage was opened; None if they are not measured."""
        return None

    @abstractmethod
    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, in any thread, soon after any process has added records. Returns a function that ends this.

        Uses no thread per callback. A call may come without new records; new records always cause a call.
        """

    @abstractmethod
    def purge(self, topic: str, before_ms: int, until: Mapping[int, int] | None = None) -> int:
        """Delete the oldest records, with timestamps before the given one. Returns how many were deleted.

        With `until`, only up to and including the offset of each given partition. Without it, nothing is done if
        the engine expires records by itself.
        """

    @abstractmethod
    def retain(self, topic: str, retention_ms: int | None) -> None:
        """Let records expire after this time, including stored ones; None: never. Cheap if nothing changes.

        Does nothing if the engine relies on `purge`.
        """

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions until the topic has at least that many."""

    @abstractmethod
    def tidy(self) -> None:
        """Release files and connections of topics that other processes deleted. Call this periodically."""

    @abstractmethod
    def close(self) -> None:
        """Finish started appends and release files, connections and threads. Later calls are `Unavailable`."""


class SealableStorage(Storage):
    """A storage that can close a topic for appends inside the topic itself.

    In any other storage, any process can append to a topic after the end of its timeline was recorded. So the
    caller of `append` must check, after the result and before it acknowledges, whether the timeline was closed,
    and must not acknowledge records after the recorded end.
    """

    @abstractmethod
    def seal(self, topic: str, token: str) -> None:
        """Refuse all later appends with `Sealed(token)`, also after a crash. Sealed if another token has."""

    @abstractmethod
    def unseal(self, topic: str, token: str) -> None:
        """Remove the seal of that token, if there is one."""


class FencingStorage(Storage):
    """A storage with appends that only the newest holder of a fence can make: an old holder cannot append late.

    A process raises the fence of a topic before its first append. Then it must check that its epoch is still the
    newest one, because the engine may not know the epochs of other processes.
    """

    @abstractmethod
    def raise_fence(self, topic: str, fence: Fence) -> None:
        """Allow appends with this fence, and refuse those of other processes and of lower epochs.

        Appends with a fence of that name that are in progress are stored before this returns, or never. What is
        stored by then can be read. Idempotent. Fenced if the topic knows a higher epoch. NotFound if there is no
        such topic.
        """

    @abstractmethod
    def append_fenced(
        self, topic: str, batches: Mapping[int, NewRecords], fence: Fence
    ) -> Future[dict[int, Placed]]:
        """Like `append`. Fenced, with nothing stored, if the fence was not raised, or was raised by others since.

        An append that is in progress while others raise the fence may also be OutcomeUnknown.
        """


class ExistingTopic(msgspec.Struct, frozen=True):
    """A topic that another application has made. If it is compacted, the engine removes records in its middle."""

    partitions: int
    compacted: bool


class AdoptingStorage(Storage):
    """A storage whose topics may also be made and used by other applications."""

    @abstractmethod
    def existing(self, topic: str) -> ExistingTopic:
        """The topic as it is now. NotFound if it does not exist."""
