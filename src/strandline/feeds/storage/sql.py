"""Feeds in a SQLite file.

The records of a feed are rows in order of their ids, so that the newest entries are read without the others. A set
and a drop fold all records of the feed and write the compacted ones. Everything else only adds rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from strandline.clock import Clock
from strandline.engine.database import Database, Rows, Tables, Transaction
from strandline.errors import StrandlineError
from strandline.feeds import fold, records, times
from strandline.feeds.model import (
    AppendEntry,
    Applied,
    DeleteEntry,
    DropFeed,
    Entry,
    FeedAnswer,
    FeedLimits,
    Operation,
    SetFeed,
    feeds_of,
)
from strandline.feeds.records import CHECKPOINT, DROP, EPOCH, HISTORY, Record
from strandline.feeds.storage.port import FeedStore
from strandline.log.cursors import Position

_AT_ONCE = 200
# Rows that a read gets in addition to the entries it needs, because some are hidden or about the same id.
_SPARE = 20


class SqlFeedStore(FeedStore):
    def __init__(self, database: Database, limits: FeedLimits, clock: Clock) -> None:
        self._tables = Tables(database, "feeds", "strandline.feeds.storage", "feeds.sql")
        self._limits = limits
        self._clock = clock

    # -- writes

    def apply(self, operations: Sequence[Operation]) -> list[Applied]:
        try:
            return self._tables.transaction(lambda own: [self._apply(own, one) for one in operations])
        except StrandlineError as error:
            return [Applied(failed=dict.fromkeys(feeds_of(operation), error)) for operation in operations]

    def _apply(self, own: Transaction, operation: Operation) -> Applied:
        if isinstance(operation, SetFeed | DropFeed):
            return Applied(self._replace(own, operation))
        new = records.of_operation(operation)
        ((arrival,),) = own.run("arrive", count=len(new))
        if isinstance(operation, DeleteEntry):
            return Applied(self._add_tombstones(own, operation, new[0], arrival))
        found = own.run("existing", feeds=list(feeds_of(operation)), alive_ms=self._alive_ms())
        own.load(
            "add",
            [
                (number, record.id, record.time, record.kind, arrival + place, record.metadata)
                for number, epoch, floor in found
                for place, record in enumerate(new)
                if record.time >= epoch and (floor is None or record.id > floor)
            ],
        )
        # Some appends, chosen by the number of the arrival, trim the feed: no column counts them.
        often = self._limits.slack if isinstance(operation, AppendEntry) else 0
        for number, epoch, floor in found:
            if not often or _spread(number, arrival) % often == 0:
                self._trim(own, number, epoch, floor)
        return Applied(len(found))

    def _add_tombstones(self, own: Transaction, operation: DeleteEntry, record: Record, arrival: int) -> int:
        feeds = list(operation.feeds)
        own.run("add_feeds", feeds=feeds, now_ms=self._clock.now_ms())
        found = own.run("numbers", feeds=feeds, alive_ms=self._alive_ms())
        rows = [(number, record.id, record.time, record.kind, arrival, None) for number, _ in found]
        own.load("add", rows)
        return sum(exists for _, exists in found)

    def _trim(self, own: Transaction, number: int, epoch: int, floor: int | None) -> None:
        first = own.run("first_trimmed", feed=number, epoch=epoch, cap=self._limits.cap)
        if first and (floor is None or first[0][0] > floor):
            own.run("raise_floor", feed=number, floor=first[0][0])
            own.run("trim", feed=number, floor=first[0][0])

    def _replace(self, own: Transaction, operation: SetFeed | DropFeed) -> int:
        own.run("add_feeds", feeds=[operation.feed], now_ms=self._clock.now_ms())
        ((number, read_ms, *kept),) = own.run("feed", name=operation.feed)
        state = self._state(own, number, *kept)
        if state.exists and read_ms < self._alive_ms():
            state.expire()
        existed = state.exists
        for record in records.of_operation(operation):
            state.apply(record)
        self._rewrite(own, number, state)
        if isinstance(operation, SetFeed) and operation.time == state.start:
            own.run("renew", feeds=[number], now_ms=self._clock.now_ms())
        return int(existed)

    def _state(
        self, own: Transaction, number: int, epoch: int | None, dropped: int | None, floor: int | None
    ) -> fold.FeedState:
        rows = own.run("records", feed=number)
        return fold.fold(itertools.chain(_head(epoch, dropped, floor), (Record(*row) for row in rows)))

    def _rewrite(self, own: Transaction, number: int, state: fold.FeedState) -> None:
        """Store a state in place of all records of the feed; without any records, forget the feed."""
        kept = fold.compact(state, self._limits.cap)
        own.run("remove_records", feed=number)
        if not kept.listed and not kept.beside:
            own.run("remove_feed", feed=number)
            return
        # Every record has its own place, and the places of additions are in the order of arrival.
        rows = _rows(number, [*kept.beside, *kept.listed])
        ((arrival,),) = own.run("arrive", count=len(rows) + len(state.ids))
        own.load("add", [(*row[:4], arrival + row[4], row[5]) for row in rows])
        own.run(
            "change_feed",
            feed=number,
            epoch=state.epoch if state.exists else None,
            dropped=None if state.exists or state.dropped < 0 else state.dropped,
            floor=state.floor,
        )

    # -- reads

    def read(self, feeds: Sequence[str], offset: int, length: int) -> list[FeedAnswer]:
        try:
            with self._tables.snapshot() as own:
                found = [self._newest(own, name, offset, length) for name in feeds]
        except StrandlineError as error:
            return [FeedAnswer(name, "error", error=error) for name in feeds]
        self._renew(rows[0] for rows, _ in found if rows)
        return [
            FeedAnswer(name, "hit", entries) if rows else FeedAnswer(name, "miss")
            for name, (rows, entries) in zip(feeds, found, strict=True)
        ]

    def _newest(self, own: Transaction, name: str, offset: int, length: int) -> tuple[Rows, tuple[Entry, ...]]:
        """Read more rows as long as too many are hidden. No rows if the feed does not exist."""
        end = min(offset + length, self._limits.cap)
        most = end + _SPARE
        while True:
            rows = own.run("newest", name=name, most=most, alive_ms=self._alive_ms())
            state = _folded(rows)
            if len(rows) == most:
                state.ids.pop(rows[-1][5], None)  # more rows may be about the same id
            entries = fold.visible(state, self._limits.cap)
            if len(rows) < most or len(entries) >= end or len(state.ids) >= self._limits.cap:
                return rows[:1], tuple(entries[offset:end])
            most *= 4

    def read_since(self, feed: str, entry_id: int) -> tuple[Entry, ...] | None:
        rows = self._tables.fetch("all_records", name=feed, alive_ms=self._alive_ms())
        if not rows:
            return None
        self._renew(rows[:1])
        return tuple(fold.since(_folded(rows), entry_id, self._limits.cap))

    def _renew(self, found: Iterable[tuple[object, ...]]) -> None:
        now_ms = self._clock.now_ms()
        due = [row[0] for row in found if isinstance(row[3], int) and row[3] <= now_ms - self._limits.renewal_ms]
        if due:
            with suppress(StrandlineError):  # the entries are read; the next read tries again
                self._tables.store("renew", feeds=due, now_ms=now_ms)

    # -- upkeep

    def _alive_ms(self) -> int:
        """A feed that was last read before this time has expired, also if it is not removed yet."""
        return self._clock.now_ms() - self._limits.unread_ms

    def expire(self) -> int:
        before = times.of_ms(max(self._clock.now_ms() - self._limits.grace_ms, 0))
        while self._forget("with_old_tombstones", before) or self._forget("with_old_drops", before):
            pass
        removed = 0
        while found := self._expire_unread(self._alive_ms()):
            removed += found
        return removed

    def _expire_unread(self, before_ms: int) -> int:
        def work(own: Transaction) -> int:
            found = own.run("unread", before_ms=before_ms, limit=_AT_ONCE)
            for (number,) in found:
                state = self._state_of(own, number)
                state.expire()
                self._rewrite(own, number, state)
            return len(found)

        return self._tables.transaction(work)

    def _forget(self, which: str, before: int) -> int:
        def work(own: Transaction) -> int:
            found = own.run(which, before=before, limit=_AT_ONCE)
            for (number,) in found:
                state = self._state_of(own, number)
                state.forget(before)
                self._rewrite(own, number, state)
            return len(found)

        return self._tables.transaction(work)

    def _state_of(self, own: Transaction, number: int) -> fold.FeedState:
        return self._state(own, *own.run("feed_of_number", feed=number)[0])

    # -- positions

    def save_positions(
        self,
        source: str,
        positions: Mapping[int, Position],
        incarnation: str | None = None,  # noqa: ARG002 - it never changes
    ) -> None:
        rows = [
            {"source": source, "partition": partition, "cursor_order": at.order, "cursor_offset": at.offset}
            for partition, at in positions.items()
        ]
        self._tables.transaction(lambda own: own.run_many("save_position", rows))

    def positions(self, source: str) -> dict[int, Position]:
        rows = self._tables.fetch("positions", source=source)
        return {partition: Position(order, offset) for partition, order, offset in rows}

    def incarnation(self) -> str:
        # What was committed stays in the file. A process that starts replays in any case.
        return ""

    def check(self) -> None:
        self._tables.fetch("positions", source="")

    def close(self) -> None:
        """The owner of the database closes it."""


def _spread(number: int, arrival: int) -> int:
    """A number that is a multiple of n about once in n arrivals, whatever the distances between them are."""
    return (number * 0xC2B2AE3D27D4EB4F + arrival * 0x9E3779B97F4A7C15) >> 32


def _head(epoch: int | None, dropped: int | None, floor: int | None) -> Iterable[Record]:
    """The records of what the row of a feed has."""
    start = dropped if epoch is None else epoch
    if dropped is not None:
        yield Record(DROP, 0, dropped)
    if floor is not None and start is not None:
        yield Record(CHECKPOINT, floor, start)
    elif epoch is not None:
        yield Record(EPOCH, 0, epoch)


def _folded(rows: Rows) -> fold.FeedState:
    """The state from joined rows of one feed that exists."""
    if not rows:
        return fold.FeedState()
    _, epoch, floor, *_ = rows[0]
    found = (Record(*row[4:]) for row in rows if row[4] is not None)
    return fold.fold(itertools.chain(_head(epoch, None, floor), found))


def _rows(number: int, kept: Iterable[Record]) -> list[tuple[int, int, int, int, int, bytes | None]]:
    """Rows with the place of each record in the order of arrival. Tombstones may be given twice."""
    rows = []
    arrived: set[int] = set()
    following = 0
    for record in kept:
        if record.kind >= EPOCH:
            continue
        place = following if record.rank is None else record.rank
        rows.append((number, record.id, record.time, record.kind, place, record.metadata))
        # Ranks count ids: a second addition of an id has no place of its own.
        if record.kind <= HISTORY and record.id not in arrived:
            arrived.add(record.id)
            following = max(following, place + 1)
    return rows
