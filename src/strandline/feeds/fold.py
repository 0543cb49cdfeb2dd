"""The state of a feed is a fold of its records. Pure; every rule about what is visible is here.

Records may arrive late, twice and in any order: the visible entries are the same. Only the order of first arrival,
for `since`, depends on the order of records. A state is folded from all records that an engine has for a feed:
first those beside the list (tombstones, the time of a drop), then the list.

`compact` writes a state as few records. Folding them, and then more records, gives the same answers as folding the
original records, and then more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from strandline.feeds.model import Entry
from strandline.feeds.records import ADD, CHECKPOINT, DELETE, DROP, EPOCH, HISTORY, UNMERGE, Record

#: A time and metadata.
Addition = tuple[int, bytes | None]
_BEFORE_ALL = -1


class IdState:
    """What is known about an id that counts towards the cap.

    `additions` has the additions later than `unmerged`, oldest first, without those that another one beats in
    both time and metadata, so each later one has smaller metadata. `rank` is the place in the order of first
    arrival; None if only a delete or unmerge has arrived. `fresh` is False if the id first arrived as history.
    """

    __slots__ = ("additions", "fresh", "rank", "unmerged")

    def __init__(self) -> None:
        self.additions: tuple[Addition, ...] = ()
        self.unmerged = _BEFORE_ALL
        self.rank: int | None = None
        self.fresh = False

    @property
    def last(self) -> int:
        """The latest time of all operations on the id."""
        return self.additions[-1][0] if self.additions else self.unmerged

    def hide(self, time: int) -> None:
        if time > self.unmerged:
            self.unmerged = time
            self.additions = tuple(addition for addition in self.additions if addition[0] > time)

    def add(self, time: int, metadata: bytes | None) -> None:
        if time <= self.unmerged:
            return
        if self.additions:
            self.additions = _front(self.additions, (time, metadata))
        else:
            self.additions = ((time, metadata),)


class FeedState:
    """The state of a feed, which need not exist. Mutable: `apply` adds records."""

    def __init__(self) -> None:
        self.epoch = _BEFORE_ALL
        self.dropped = _BEFORE_ALL
        #: Ids at or below it are refused.
        self.floor: int | None = None
        self.ids: dict[int, IdState] = {}
        self.tombstones: dict[int, int] = {}
        self._next_rank = 0

    @property
    def exists(self) -> bool:
        return self.epoch > self.dropped

    @property
    def start(self) -> int:
        """Operations before this time have no effect, except deletes."""
        return max(self.epoch, self.dropped)

    def apply(self, record: Record) -> None:
        """Add a record. The caller leaves out additions and unmerges that arrive while the feed does not exist."""
        kind, entry_id, time, metadata, rank = record
        if kind >= EPOCH:
            self._restart(record)
            return
        if kind == DELETE:
            self._add_tombstone(entry_id, time)
        if time < self.start or (self.floor is not None and entry_id <= self.floor):
            return
        known = self.ids.get(entry_id)
        if known is None:
            known = self.ids[entry_id] = IdState()
        if kind <= HISTORY:
            if known.rank is None:
                self._arrive(known, rank, fresh=kind == ADD)
            if entry_id not in self.tombstones:
                known.add(time, metadata)
                return
        known.hide(time)

    def _arrive(self, known: IdState, rank: int | None, *, fresh: bool) -> None:
        known.fresh = fresh
        known.rank = self._next_rank if rank is None else rank
        self._next_rank = max(self._next_rank, known.rank + 1)

    def _add_tombstone(self, entry_id: int, time: int) -> None:
        """The id still counts, but its additions are forgotten for good."""
        self.tombstones[entry_id] = max(time, self.tombstones.get(entry_id, time))
        known = self.ids.get(entry_id)
        if known is not None:
            known.hide(known.last)

    def _restart(self, record: Record) -> None:
        """Move the epoch or the time of the drop, and forget what was before."""
        before = self.start
        if record.kind == DROP:
            self.dropped = max(self.dropped, record.time)
        else:
            self.epoch = max(self.epoch, record.time)
        if self.start > before:
            self.floor = None
            self._forget_before(self.start)
        if record.kind == CHECKPOINT and record.time == self.start:
            self._raise_floor(record.id)

    def _forget_before(self, start: int) -> None:
        self.ids = {entry_id: known for entry_id, known in self.ids.items() if known.last >= start}
        for known in self.ids.values():
            if known.additions and known.additions[0][0] < start:
                known.additions = tuple(addition for addition in known.additions if addition[0] >= start)

    def _raise_floor(self, floor: int) -> None:
        if self.floor is None or floor > self.floor:
            self.floor = floor
            self.ids = {entry_id: known for entry_id, known in self.ids.items() if entry_id > floor}

    def trim(self, cap: int) -> None:
        """Keep the newest `cap` ids. This changes no answer, as long as the feed is not set or dropped."""
        if len(self.ids) > cap:
            self._raise_floor(sorted(self.ids, reverse=True)[cap])

    def forget(self, before: int) -> None:
        """Forget the tombstones, and the drop, of operations before a time. Deleted entries stay hidden."""
        self.tombstones = {entry_id: time for entry_id, time in self.tombstones.items() if time >= before}
        if not self.exists and self.dropped < before:
            self.expire()

    def expire(self) -> None:
        """Remove the feed with everything but its tombstones."""
        self.epoch = self.dropped = _BEFORE_ALL
        self.floor = None
        self.ids = {}


def fold(records: Iterable[Record]) -> FeedState:
    state = FeedState()
    apply = state.apply
    for record in records:
        apply(record)
    return state


# -- answers


def visible(state: FeedState, cap: int) -> list[Entry]:
    """The entries, newest first. Hidden ids take part in the cap."""
    newest = sorted(state.ids, reverse=True)[:cap]
    # The first addition has the greatest metadata.
    return [Entry(entry_id, found[0][1]) for entry_id in newest if (found := state.ids[entry_id].additions)]


def since(state: FeedState, entry_id: int, cap: int) -> list[Entry]:
    """What was added after an entry was, newest first: higher ids, and new entries that arrived later."""
    origin = state.ids.get(entry_id)
    rank = None if origin is None else origin.rank
    return [entry for entry in visible(state, cap) if entry.id > entry_id or _is_later(state, entry.id, rank)]


def _is_later(state: FeedState, entry_id: int, rank: int | None) -> bool:
    found = state.ids[entry_id]
    return rank is not None and found.rank is not None and found.fresh and found.rank > rank


# -- compaction


class Compacted(NamedTuple):
    """A feed in few records: its list, which is empty if the feed does not exist, and what is beside the list.

    The list alone is enough to read. Beside it are the tombstones of all ids and, while the feed does not exist,
    the drop and the operations after it.
    """

    listed: list[Record]
    beside: list[Record]


def compact(state: FeedState, cap: int) -> Compacted:
    """Trim a state, and write it as records. After a checkpoint or the epoch, their ids rise."""
    state.trim(cap)
    buried = [Record(DELETE, entry_id, state.tombstones[entry_id]) for entry_id in sorted(state.tombstones)]
    own = _own_records(state)
    if state.exists:
        above = [record for record in buried if state.floor is None or record.id > state.floor]
        # Sorting is stable: a tombstone is behind the other records of its id.
        return Compacted([*_head(state), *sorted(own + above, key=_id_of)], buried)
    if state.dropped == _BEFORE_ALL:
        return Compacted([], buried)
    return Compacted([], [Record(DROP, 0, state.dropped), *_head(state), *buried, *own])


_id_of = itemgetter(1)


def _head(state: FeedState) -> list[Record]:
    if state.floor is not None:
        return [Record(CHECKPOINT, state.floor, state.start)]
    return [Record(EPOCH, 0, state.epoch)] if state.exists else []


def _own_records(state: FeedState) -> list[Record]:
    """The records of all ids, in order of ids. A rank is written where it differs from the order of records."""
    arrived = sorted((known.rank, entry_id) for entry_id, known in state.ids.items() if known.rank is not None)
    ranks = {entry_id: rank for rank, (_, entry_id) in enumerate(arrived)}
    written: list[Record] = []
    expected = 0
    for entry_id in sorted(state.ids):
        rank = ranks.get(entry_id)
        written += _records_of(entry_id, state.ids[entry_id], None if rank == expected else rank, state.start)
        expected = expected if rank is None else max(expected, rank + 1)
    return written


def _records_of(entry_id: int, known: IdState, rank: int | None, start: int) -> Iterator[Record]:
    kind = ADD if known.fresh else HISTORY
    additions = known.additions
    if not additions and known.rank is not None:
        additions = ((known.unmerged, None),)  # a hidden addition, which keeps the order of arrival
    for time, metadata in additions:
        yield Record(kind, entry_id, time, metadata, rank)
        rank = None
    if known.unmerged >= start:
        yield Record(UNMERGE, entry_id, known.unmerged)


def _front(additions: tuple[Addition, ...], new: Addition) -> tuple[Addition, ...]:
    """The additions that no other one beats in both time and metadata, oldest first."""
    if any(_beats(one, new) for one in additions):
        return additions
    return tuple(sorted([new, *(one for one in additions if not _beats(new, one))], key=itemgetter(0)))


def _beats(one: Addition, other: Addition) -> bool:
    return one[0] >= other[0] and _is_at_least(one[1], other[1])


def _is_at_least(one: bytes | None, other: bytes | None) -> bool:
    return other is None or (one is not None and one >= other)
