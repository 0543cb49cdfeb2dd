"""The newest actions of one partition of the log, without their values.

The tail knows every action in (start, end]. Its end follows what this node writes. If other nodes have written in
between, the log is read from the end on. The tail is bounded: eviction moves its start up, and older actions are
then read from the log. So eviction costs time and never changes an answer.

For journals that this node writes, the tail also has the head at its end: the head from the store, with all later
actions folded onto it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, takewhile
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Gap, Malformed
from strandline.journal import actions
from strandline.journal.fold import Folded, fold
from strandline.journal.model import Append, Head, LoggedAction, Mark
from strandline.journal.record_headers import action_headers
from strandline.journal.storage.port import JournalStore
from strandline.journal.unreplicated import Unreplicated
from strandline.log.cursors import Position
from strandline.log.raw import RawLog, RawTopic
from strandline.log.reading import Batch

#: Before the first record of any log.
START = Position(0, -1)

# How long an append waits for appends of other threads that were stored just before it.
_PATIENCE_SECONDS = 0.002
_MAX_PENDING = 1_000
_IDLE_SECONDS = 1
_READ_AGAIN = 500
# Records that are Python objects at the same time: a batch of them takes several times its bytes.
_CONVERTED = 500

#: The outcomes of the appends with one id, by their cursors.
Outcomes = dict[Position, Folded]
#: A record: its cursor, and its action without the value. None if it holds no action that changes a journal.
Header = tuple[Position, LoggedAction | None]


class _Awaited:
    """Appends of this node to one journal with one id. While there are any, the head of the journal is kept."""

    __slots__ = ("outcomes", "writers")

    def __init__(self) -> None:
        self.writers = 0
        self.outcomes: Outcomes = {}


class _Wanted(NamedTuple):
    """The actions of a journal after a cursor are given to `found`."""

    entity: str
    after: Position
    found: Unreplicated


class Tail:
    def __init__(self, raw: RawLog, topic: RawTopic, partition: int, limit: int) -> None:
        self._raw = raw
        self._topic = topic
        self._adopted = topic.adopted
        self._partition = partition
        self._limit = limit
        # Only one thread at a time reads the log. The state has its own lock, which is held briefly.
        self._following = threading.Lock()
        self._state = threading.Lock()
        self._moved = threading.Condition(self._state)
        self._started = False
        self._start = self._end = self._read_to = START
        self._order: deque[LoggedAction] = deque()
        self._actions: dict[str, deque[LoggedAction]] = {}
        # What this node wrote after records that it does not know yet.
        self._pending: dict[Position, LoggedAction | None] = {}
        self._writing = 0
        self._heads: OrderedDict[str, Head | None] = OrderedDict()
        # By journal and id.
        self._awaited: dict[tuple[str, str], _Awaited] = {}
        self._moved_at = -math.inf

    # -- what this node writes

    def expect(self, entity: str, append_id: str, store: Callable[[], JournalStore]) -> Outcomes:
        """Note the outcome of every append to the journal with this id, until `release`."""
        if time.monotonic() - self._moved_at > _IDLE_SECONDS:
            self._catch_up(entity, store())
        with self._state:
            awaited = self._awaited.get((entity, append_id))
            if awaited is None:
                awaited = self._awaited[entity, append_id] = _Awaited()
            awaited.writers += 1
            known = entity in self._heads
            if known:
                self._heads.move_to_end(entity)
        if not known:
            try:
                # The head is read before the append is written. Afterwards, the store may include it already.
                self._learn(entity, store())
            except BaseException:
                self.release(entity, append_id)
                raise
        return awaited.outcomes

    def release(self, entity: str, append_id: str) -> None:
        """End what `expect` began."""
        with self._state:
            awaited = self._awaited[entity, append_id]
            awaited.writers -= 1
            if not awaited.writers:
                del self._awaited[entity, append_id]

    def _catch_up(self, entity: str, store: JournalStore) -> None:
        """Start the tail again at the store's pointer, which may be far ahead of it after a pause."""
        with store.open(self._topic.id, self._partition, entity, None) as stored:
            pointer = stored.pointer or START
        with self._following:
            self._begin(pointer)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Mark a write to the partition beside which other threads of this node may write, too."""
        with self._state:
            self._writing += 1
        try:
            yield
        finally:
            with self._state:
                self._writing -= 1
                self._moved.notify_all()

    def wrote(self, records: Iterable[Header]) -> None:
        """Note the records that this node has written."""
        with self._state:
            for cursor, logged in records:
                if not self._pending and self._is_next(cursor):
                    self._add(cursor, logged)
                else:
                    self._pending[cursor] = logged
            self._take_pending()
            if len(self._pending) > _MAX_PENDING:
                self._pending.clear()  # they are read from the log

    def settle(self, outcomes: Outcomes, cursor: Position) -> Folded:
        """The outcome of the append at the cursor, which this node wrote after records that it does not know."""
        with self._state:
            # Other threads report appends that were stored together with this one within a moment.
            self._moved.wait_for(lambda: self._end >= cursor or not self._writing, _PATIENCE_SECONDS)
        self.follow(cursor)
        return outcomes[cursor]

    # -- what is known

    def gather(self, entity: str, pointer: Position | None, until: Position, found: Unreplicated) -> None:
        """Give `found` the actions of the journal after the pointer, up to `until` at least.

        Only records that the tail does not have are read from the log, and each once.
        """
        after = pointer or START
        with self._state:
            known = self._started and self._start <= after and until <= self._end
            cached = self._cached(entity, after, until) if known else []
        if not known:
            cached = self._gather_from_log(entity, after, until, found)
        for logged in cached:
            found.take(logged)

    def _gather_from_log(
        self, entity: str, after: Position, until: Position, found: Unreplicated
    ) -> list[LoggedAction]:
        with self._following:
            self._begin(after)
            while True:
                with self._state:
                    start, end = self._start, self._end
                    if start <= after:
                        cached = self._cached(entity, after, until)
                        break
                for batch in self._batches(after, min(start, until)) if after < until else ():
                    _take_wanted(batch, _Wanted(entity, after, found))
                after = start
            for logged in cached:
                found.take(logged)
            self._read(end, until, _Wanted(entity, max(after, end), found))
        return []

    def _begin(self, pointer: Position) -> None:
        with self._state:
            # A tail that is behind the store starts again there, unless an append needs the heads it has.
            if not self._started or (pointer > self._end and not self._awaited):
                self._started = True
                self._start = self._end = pointer
                self._order.clear()
                self._actions.clear()
                self._heads.clear()
                self._take_pending()

    def _cached(self, entity: str, after: Position, until: Position) -> list[LoggedAction]:
        newest_first = reversed(self._actions.get(entity, ()))
        found = [*takewhile(lambda logged: logged.cursor > after, newest_first)]
        return [logged for logged in reversed(found) if logged.cursor <= until]

    def follow(self, until: Position) -> None:
        """Read on until the tail has all actions up to `until`."""
        with self._state:
            if self._end >= until:
                return
        with self._following:
            self._read(self._end, until)

    # -- heads

    def _learn(self, entity: str, store: JournalStore) -> None:
        """Load the head of the journal, as it is at the end of the tail."""
        with store.open(self._topic.id, self._partition, entity, None) as stored:
            pointer, found = stored.pointer or START, self._unreplicated(stored.head)
        with self._state:
            until = max(pointer, self._end)
        self.gather(entity, pointer, until, found)
        with self._state:
            if entity in self._heads:
                return
            if self._start <= until:
                for logged in self._cached(entity, until, self._end):
                    found.take(logged)
                self._heads[entity] = found.head
                self._forget_heads()
                return
        self._learn(entity, store)  # so much was written meanwhile that a part of it is evicted

    def _unreplicated(self, head: Head | None) -> Unreplicated:
        return Unreplicated(head, adopted=self._adopted, kept_bytes=0)

    def _forget_heads(self) -> None:
        if len(self._heads) <= 2 * self._limit:
            return
        needed = {entity for entity, _ in self._awaited}
        for entity in [*self._heads]:
            if len(self._heads) <= self._limit:
                break
            if entity not in needed:
                del self._heads[entity]

    # -- records, in log order

    def _take_pending(self) -> None:
        """Continue with what this node wrote, if it follows directly."""
        for cursor in sorted(self._pending):
            if cursor > self._end and not self._is_next(cursor):
                break
            logged = self._pending.pop(cursor)
            if cursor > self._end:
                self._add(cursor, logged)
        self._moved.notify_all()

    def _is_next(self, cursor: Position) -> bool:
        order, offset = self._end
        return self._started and cursor == (order, offset + 1)

    def _add(self, cursor: Position, logged: LoggedAction | None) -> None:
        if logged is not None:
            self._fold(cursor, logged)  # first: after an error in it, the tail still ends before the record
        self._end = cursor
        self._moved_at = time.monotonic()
        if logged is not None:
            self._keep(logged)

    def _fold(self, cursor: Position, logged: LoggedAction) -> None:
        entity = logged.entity
        if entity in self._heads:
            folded = fold(self._heads[entity], logged, adopted=self._adopted)
            self._heads[entity] = folded.head
            if isinstance(logged.action, Append) and logged.action.id is not None:
                awaited = self._awaited.get((entity, logged.action.id))
                if awaited is not None:
                    awaited.outcomes[cursor] = folded

    def _keep(self, logged: LoggedAction) -> None:
        self._order.append(logged)
        own = self._actions.get(logged.entity)
        if own is None:
            own = self._actions[logged.entity] = deque()
        own.append(logged)
        if len(self._order) > self._limit:
            self._evict()

    def _evict(self) -> None:
        oldest = self._order.popleft()
        own = self._actions[oldest.entity]
        own.popleft()
        if not own:
            del self._actions[oldest.entity]
        self._start = oldest.cursor

    # -- the log

    def _read(self, after: Position, until: Position, wanted: _Wanted | None = None) -> None:
        """Move the end to `until`, by reading the records after `after`."""
        if after >= until:
            return
        for batch in self._near_batches(after, until):
            if wanted is not None:
                _take_wanted(batch, wanted)
            headers = _headers(batch)
            with self._state:
                for cursor, logged in headers:
                    if cursor > self._end:
                        self._add(cursor, logged)
                self._take_pending()
        self._read_to = max(self._read_to, until)
        with self._state:
            if self._end < until:  # offsets without records
                self._end = until
                self._take_pending()

    def _near_batches(self, after: Position, until: Position) -> Iterator[Batch]:
        """The records after a position; some that are before it may come first."""
        batches = self._batches(self._continued(after), until)
        try:
            first = next(batches, None)
        except Gap:  # what was read last may have been replicated and removed since
            batches, first = self._batches(after, until), None
        yield from batches if first is None else chain([first], batches)

    def _continued(self, after: Position) -> Position:
        """Where the last read ended, if that is near: a Kafka storage keeps the consumer of a read there."""
        last = self._read_to
        is_near = last.order == after.order and 0 <= after.offset - last.offset <= _READ_AGAIN
        return last if is_near else after

    def _batches(self, after: Position, until: Position) -> Iterator[Batch]:
        return self._raw.read(self._topic.name, self._partition, None if after == START else after, until)


def _headers(batch: Batch) -> list[Header]:
    """The records of a batch without their values.

    Every reader skips records that hold no action or cannot be decoded; the replicator sets them aside.
    """
    records = batch.records
    columns = [records["offset"], records["timestamp"], records["key"], records["value"].is_valid()]
    found: list[Header] = []
    for offset, time_ms, key, has_value, (header, _) in zip(
        *(column.to_pylist() for column in columns), action_headers(records), strict=True
    ):
        cursor = Position(batch.timeline, offset)
        try:
            logged = actions.from_header(
                cursor, time_ms, key, b"" if has_value else None, header, with_value=False
            )
        except Malformed:
            logged = None
        found.append((cursor, header_of(logged)))
    return found


def _take_wanted(batch: Batch, wanted: _Wanted) -> None:
    """Give `wanted.found` the actions of its journal, with their values."""
    records = batch.records
    own = records.filter(pc.equal(records["key"], pa.scalar(wanted.entity.encode(), pa.binary())))
    parts = (own.slice(start, _CONVERTED) for start in range(0, own.num_rows, _CONVERTED))
    for record in chain.from_iterable(part.to_pylist() for part in parts):
        cursor = Position(batch.timeline, record.pop("offset"))
        with suppress(Malformed):
            logged = actions.from_record(cursor, record.pop("timestamp"), **record)
            if logged is not None and cursor > wanted.after:
                wanted.found.take(logged)


def header_of(logged: LoggedAction | None) -> LoggedAction | None:
    """The action without value and headers; None if it changes no journal."""
    if logged is None or isinstance(logged.action, Mark):
        return None
    return LoggedAction(logged.entity, logged.cursor, logged.timestamp_ms, logged.action, None, logged.origin)
