"""The storage port: what a place for records promises. SQLite and Kafka fill it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from strandline.errors import StrandlineError
from strandline.log.records import NewRecords

#: In `Placed.offsets`: provably not stored, and not known whether stored.
FAILED = -1
UNKNOWN = -2


@dataclass(frozen=True)
class Placed:
    """What became of one partition's records of an append.

    `offsets[i]` is where record i is, or FAILED, or UNKNOWN; `error` says why some are not stored.
    """

    offsets: Sequence[int]
    error: StrandlineError | None = None

    @property
    def complete(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class Bounds:
    """The oldest offset a partition still holds and the newest it ever got (−1: none; then first is 0)."""

    first: int
    last: int


class Storage(ABC):
    """Topics of records in partitions.

    Thread-safe. Offsets of a partition grow in the order of appends and may have gaps. What `append` placed
    survives any crash. Topic names are never reused by the caller.
    """

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, retention_ms: int) -> None:
        """Make an empty topic. Doing it again is harmless, after a crash in the middle as well."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Remove a topic and its records; a missing one is fine."""

    def make_ready(self, topic: str) -> None:
        """Look the topic up and connect to it, so that its first append does not wait for that."""
        self.bounds(topic)

    @abstractmethod
    def append(
        self, topic: str, batches: Mapping[int, NewRecords], *, waits: bool = False
    ) -> Future[dict[int, Placed]]:
        """Start to store the records of each partition and return at once.

        The future has what became of each partition's records, once that is durable. Appends started one
        after the other are stored in that order in every partition. The future fails, with nothing stored,
        with `Sealed`, `NotFound`, `StorageFull` or `Unavailable`; with `OutcomeUnknown` everything may or may
        not be stored, and it is never tried again from here. Records for a partition that the topic does not
        have are `FAILED`; the others of the append are stored. A started append cannot be cancelled.

        `waits` is the caller's word that it asks for the result next. Nothing needs to happen until it does, and
        its own thread may do it then.
        """

    @abstractmethod
    def read(self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch:
        """Records from `offset` on, as many as are there now within the limits, but at least one if there is one.

        A `records.READ` batch; empty at the end. Offsets before the first start at the first. NotFound if there
        is no such topic or partition.
        """

    def bounds(self, topic: str) -> list[Bounds]:
        """First and last offset of every partition, at one moment."""
        return self.bounds_of([topic])[0]

    @abstractmethod
    def bounds_of(self, topics: Sequence[str]) -> list[list[Bounds]]:
        """The same of several topics, in one go where that is quicker. NotFound if one of them is missing."""

    @abstractmethod
    def find(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The offset of the first record whose timestamp is at or after the given one, else last + 1."""

    @abstractmethod
    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, from some thread, soon after records may have been added by anybody; returns how to stop.

        Holds no thread per watcher. Calls may come without news; news never come without a call.
        """

    @abstractmethod
    def purge(self, topic: str, before_ms: int) -> int:
        """Remove the oldest records, with timestamps before the given one; how many went.

        An engine that expires records by itself has nothing to do here.
        """

    @abstractmethod
    def retain(self, topic: str, retention_ms: int) -> None:
        """Have records expire after so long, those that are there as well; cheap while nothing changes.

        An engine that is purged has nothing to do here.
        """

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None:
        """Have at least that many partitions."""

    @abstractmethod
    def tidy(self) -> None:
        """Let go of what is held of topics that others deleted; to be called now and then."""

    @abstractmethod
    def close(self) -> None:
        """Finish what was started and let go of files, connections and threads; later calls are `Unavailable`."""


class SealableStorage(Storage):
    """A storage that can close a topic for appends inside the topic itself.

    The end of a topic of any other storage can be passed by an append at any time, from anywhere. Whoever
    appends there must look up, after the answer and before acknowledging it, whether the timeline was
    closed meanwhile, and must not acknowledge what lies past its recorded end.
    """

    @abstractmethod
    def seal(self, topic: str, token: str) -> None:
        """Refuse all later appends with `Sealed(token)`, also after a crash. Conflict if another token did."""

    @abstractmethod
    def unseal(self, topic: str, token: str) -> None:
        """Take the seal of that token away; without one this does nothing."""
