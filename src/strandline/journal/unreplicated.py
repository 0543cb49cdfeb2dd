"""The actions of one journal that are in the log and not in the store, folded onto the stored head."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from strandline.journal.fold import Verdict, fold
from strandline.journal.model import Append, Head, LoggedAction, Purge
from strandline.log.cursors import Position

#: How many bytes of values are kept. Of further appends only the cursors are kept.
KEPT_BYTES = 8 << 20
# How many appends share one range of seqNrs, so that a long journal costs 10 bytes an append instead of 32.
_BLOCK = 16


class Unreplicated:
    """Takes the actions one by one in log order. An append without its value costs a few bytes here."""

    def __init__(self, base: Head | None, *, adopted: bool, kept_bytes: int = KEPT_BYTES) -> None:
        self.base = base
        self.head = base
        #: Whether an append has a seqNr that an earlier one had, which only happens on an adopted topic.
        self.forked = False
        self._adopted = adopted
        self._space = kept_bytes
        self._offsets = array("q")
        # For each block of appends: its start in `_offsets`, the order of its timeline, the range of its seqNrs.
        self._starts, self._orders = array("q"), array("q")
        self._firsts, self._lasts = array("q"), array("q")
        self._kept: dict[int, LoggedAction] = {}

    @property
    def continues(self) -> bool:
        """Whether the rows in the store belong to the journal as it is now: it was not purged since."""
        return self.base is not None and self.head is not None and self.base.since == self.head.since

    def take(self, logged: LoggedAction) -> None:
        newest = 0 if self.head is None else self.head.seq_nr
        self.head, verdict = fold(self.head, logged, adopted=self._adopted)
        if verdict is not Verdict.APPLIED:
            return
        if isinstance(logged.action, Append):
            self.forked = self.forked or logged.action.first <= newest
            self._add(logged, logged.action)
        elif isinstance(logged.action, Purge):
            self._clear()

    def _add(self, logged: LoggedAction, action: Append) -> None:
        if logged.value is not None and len(logged.value) <= self._space:
            self._space -= len(logged.value)
            self._kept[len(self._offsets)] = logged
        order, at = logged.cursor.order, len(self._offsets)
        if not self._starts or order != self._orders[-1] or at - self._starts[-1] == _BLOCK:
            for column, value in zip(self._blocks, (at, order, action.first, action.last), strict=True):
                column.append(value)
        self._offsets.append(logged.cursor.offset)
        self._firsts[-1] = min(self._firsts[-1], action.first)
        self._lasts[-1] = max(self._lasts[-1], action.last)

    @property
    def _blocks(self) -> tuple[array[int], ...]:
        return self._starts, self._orders, self._firsts, self._lasts

    def _clear(self) -> None:
        self.forked = False
        self._space += sum(len(logged.value or b"") for logged in self._kept.values())
        self._kept.clear()
        for column in (self._offsets, *self._blocks):
            del column[:]

    def appends(self, first: int, last: int) -> Iterator[tuple[Position, LoggedAction | None]]:
        """The appends of the journal's current life with such seqNrs: their cursors, and their values if kept.

        Their neighbours may be among them.
        """
        for block, (start, order, lowest, highest) in enumerate(zip(*self._blocks, strict=True)):
            if highest >= first and lowest <= last:
                end = self._starts[block + 1] if block + 1 < len(self._starts) else len(self._offsets)
                for at in range(start, end):
                    yield Position(order, self._offsets[at]), self._kept.get(at)
