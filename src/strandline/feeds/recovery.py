"""Restores a store from a snapshot and the recorded operations.

A node that starts applies what is recorded after the position of the store; so does a node whose store has
started again, or was replaced by an older copy. Only then it saves positions; otherwise a restored snapshot would
seem to be complete.

A store contains how far `feeds.operations` is applied to it. So a snapshot of the store, or a copy of its file,
says by itself where a replay starts. Operations are idempotent: a replay may start too early, never too late.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from strandline.clock import Clock
from strandline.errors import Invalid, NotFound, StrandlineError, Unavailable
from strandline.feeds import operation_log
from strandline.feeds.model import Applied, Operation
from strandline.feeds.operation_log import OPERATIONS
from strandline.feeds.storage.port import FeedStore
from strandline.log import cursors
from strandline.log.cursors import Position
from strandline.log.local import LocalLog
from strandline.log.model import CursorText

log = logging.getLogger(__name__)

_AT_ONCE = 500


class Recovery:
    def __init__(self, log: LocalLog, store: Callable[[], FeedStore], clock: Clock, settle_ms: int) -> None:
        """An operation that was recorded is applied or given up after `settle_ms`, on every node."""
        self._log = log
        self._store = store
        self._clock = clock
        self._settle_ms = settle_ms
        #: Ends of the log, and when they were seen.
        self._seen: deque[tuple[int, dict[int, Position]]] = deque()
        #: The store has at least these positions, unless it was replaced by an older copy. None: not known yet.
        self._known: dict[int, Position] | None = None
        #: The store as it was found then. A part that has started again may lack what it had not saved.
        self._incarnation = ""

    def is_recorded(self) -> bool:
        """Whether operations were ever recorded."""
        try:
            self._log.types.entry(OPERATIONS)
        except NotFound:
            return False
        return True

    @property
    def is_known(self) -> bool:
        """Whether this process knows what the store has had. Then a store that is behind has lost something."""
        return self._known is not None

    def is_behind(self) -> bool:
        """Whether the store may be an older copy, also while this process did not run.

        True as long as no position is known: without one, a store that lost everything would go unnoticed.
        """
        if self._known is None or self._store().incarnation() != self._incarnation:
            return True
        return bool(_later(self._known, self._store().positions(OPERATIONS)))

    def accept(self) -> None:
        """Go on from the positions of the store, although it may lack operations."""
        self._incarnation = self._store().incarnation()
        self._known = self._store().positions(OPERATIONS)

    def mark(self) -> None:
        """Save a position behind which nothing is in progress: an end of the log that was seen long enough ago.

        Never a lower one than the store has. The caller has made sure that the store is not behind.
        """
        now_ms = self._clock.steady_ms()
        settled: dict[int, Position] | None = None
        while self._seen and self._seen[0][0] <= now_ms - self._settle_ms:
            settled = self._seen.popleft()[1]
        known = self._store().positions(OPERATIONS)
        if settled and (later := _later(settled, known)):
            self._save(later, self._incarnation)
            known |= later
        self._known = known or self._known
        self._seen.append((now_ms, self._ends()))

    def replay(self, refuse: Callable[[Operation], bool]) -> int:
        """Apply the recorded operations after the positions of the store; returns their number.

        `refuse` returns True for an operation that must not be applied any more.
        InvalidCursor if the log no longer has all of them, StrandlineError if a part of the store fails, or if one
        has started again meanwhile.
        """
        incarnation = self._store().incarnation()
        ends = self._ends()
        known = self._store().positions(OPERATIONS)
        start = [CursorText(str(partition), str(known.get(partition, cursors.BEGIN))) for partition in ends]
        recorded = self._recorded(start, refuse)
        count = 0
        while some := [*islice(recorded, _AT_ONCE)]:
            _raise_failed(self._store().apply(some))
            count += len(some)
        if ends:
            self._save(ends, incarnation)
        self._known, self._incarnation = ends or None, incarnation
        return count

    def _save(self, positions: dict[int, Position], incarnation: str) -> None:
        """Save positions in the store in which everything before them was found or applied."""
        if self._store().incarnation() != incarnation:
            raise Unavailable(
                "the store of feeds has started again and may lack operations; replay them", retry_after=1
            )
        self._store().save_positions(OPERATIONS, positions, incarnation)

    def _recorded(self, start: list[CursorText], refuse: Callable[[Operation], bool]) -> Iterator[Operation]:
        for batch in self._log.read(OPERATIONS, start) if start else ():
            for event in batch.values:
                try:
                    operation = operation_log.decoded(event)
                except Invalid as error:
                    log.warning("a record of %s is left out: %s", OPERATIONS, error.detail)
                else:
                    if not refuse(operation):
                        yield operation

    def _ends(self) -> dict[int, Position]:
        """The end of each partition; none if nothing was recorded yet."""
        try:
            partitions = self._log.partitions(OPERATIONS)
        except NotFound:
            return {}
        ends = {int(one.partition): cursors.parse(one.newest_available_offset) for one in partitions}
        return {partition: end for partition, end in ends.items() if end is not None}


def _later(some: dict[int, Position], others: dict[int, Position]) -> dict[int, Position]:
    """The positions that are later than the others."""
    return {partition: at for partition, at in some.items() if partition not in others or at > others[partition]}


def _raise_failed(applied: list[Applied]) -> None:
    error: StrandlineError | None = next((error for one in applied for error in one.failed.values()), None)
    if error is not None:
        raise error
