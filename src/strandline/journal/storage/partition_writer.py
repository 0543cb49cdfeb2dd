"""Writes a batch of actions into the SQL tables, in the transaction of its partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from strandline import failpoints
from strandline.engine.database import Transaction
from strandline.journal.fold import JournalChange, Plan, plan_batch
from strandline.journal.model import MAX_SEQ_NR, DeadLetter, Head, LoggedAction, StoredEvent
from strandline.journal.storage import rows
from strandline.log.cursors import Position

# How many journals or rows one statement writes; it may take a few seconds at most.
_CHUNK = 20_000
_SPANS = ("since_orders", "since_offsets", "afters", "lasts")


class _Removal(NamedTuple):
    """Rows of a life that are deleted; `most` is how many there can be."""

    since: Position
    after: int
    last: int
    most: int


class PartitionWriter:
    """One partition of one topic. The caller holds the lock of the partition."""

    def __init__(self, tx: Transaction, number: int, partition: int) -> None:
        self._tx = tx
        self._place = {"number": number, "partition": partition}
        self._number = number
        self._partition = partition

    def write(self, actions: Sequence[LoggedAction], dead: Sequence[DeadLetter], *, adopted: bool) -> int:
        """The number of records that are set aside."""
        heads = self._heads({logged.entity for logged in actions})
        plan = plan_batch(heads, actions, adopted=adopted)
        failpoints.hit("journal.apply")
        self._remove(plan.changes, adopted=adopted)
        failpoints.hit("journal.apply")
        self._put_heads(plan.changes)
        failpoints.hit("journal.apply")
        self._add_rows(plan.changes)
        failpoints.hit("journal.apply")
        letters = [*dead, *self._malformed(plan)]
        self._set_aside(letters)
        failpoints.hit("journal.apply")
        return len(letters)

    def move(self, until: Position) -> None:
        self._tx.run("move", **self._place, cursor_order=until.order, cursor_offset=until.offset)
        failpoints.hit("journal.apply")

    def _heads(self, entities: set[str]) -> dict[str, Head]:
        ids = sorted(rows.stored_text(entity) or "" for entity in entities)
        found: dict[str, Head] = {}
        for part in _chunks(ids):
            for row in self._tx.run("heads", number=self._number, ids=[*part]):
                if (head := rows.head(row[1:])) is not None:
                    found[rows.own_text(row[0]) or ""] = head
        return found

    # -- deletes

    def _remove(self, changes: Sequence[JournalChange], *, adopted: bool) -> None:
        removals = [removal for change in changes for removal in _removals(change, adopted=adopted)]
        for removal in [one for one in removals if one.most > _CHUNK]:
            self._remove_step_by_step(removal)
        small = [(*one.since, one.after, one.last) for one in removals if one.most <= _CHUNK]
        self._each("remove_rows", _SPANS, small)
        purged = [
            (rows.stored_text(change.entity), *change.purged) for change in changes if change.purged is not None
        ]
        self._each("remove_snapshots", ("ids", "before_orders", "before_offsets"), purged)
        gone = [rows.stored_text(change.entity) for change in changes if change.head is None]
        for part in _chunks(gone):
            self._tx.run("remove_heads", number=self._number, ids=[*part])

    def _remove_step_by_step(self, removal: _Removal) -> None:
        life = {**self._place, "since_order": removal.since.order, "since_offset": removal.since.offset}
        while True:
            between = {"after": removal.after, "last": removal.last}
            ((last,),) = self._tx.run("nth_row", **life, **between, limit=_CHUNK)
            if last is None:
                return
            self._each("remove_rows", _SPANS, [(*removal.since, removal.after, last)])

    # -- writes

    def _put_heads(self, changes: Sequence[JournalChange]) -> None:
        found = [rows.head_row(change.entity, change.head) for change in changes if change.head is not None]
        self._each("put_heads", rows.HEAD, found)

    def _add_rows(self, changes: Sequence[JournalChange]) -> None:
        found = (
            rows.event_row(self._number, self._partition, change.head.since, stored)
            for change in changes
            if change.head is not None
            for stored in change.rows
        )
        for first in found:  # a statement for every chunk
            self._tx.load("add_rows", chain([first], islice(found, _CHUNK - 1)))

    def _malformed(self, plan: Plan) -> Iterator[DeadLetter]:
        for logged, reason in plan.malformed:
            key = logged.entity.encode()
            place = (self._partition, logged.cursor, logged.timestamp_ms)
            yield DeadLetter(*place, reason, key, logged.value, logged.headers)

    def _set_aside(self, dead: Sequence[DeadLetter]) -> None:
        values = [{**self._place, **rows.dead_letter_values(letter)} for letter in dead]
        self._tx.run_many("add_dead_letter", values)

    def _each(self, name: str, columns: Sequence[str], found: Sequence[rows.Row]) -> None:
        for part in _chunks(found):
            self._tx.run_each(name, columns, part, **self._place)


def _removals(change: JournalChange, *, adopted: bool) -> Iterator[_Removal]:
    before, head = change.before, change.head
    if before is None:
        return
    stored = before.delete_to or 0
    if change.purged is not None:
        # On an adopted topic the pointer can move back, and rows above it stay.
        yield _Removal(before.since, 0, MAX_SEQ_NR, before.seq_nr - stored)
        return
    if head is None:
        return
    if (head.delete_to or 0) > stored:
        yield _Removal(head.since, stored, head.delete_to or 0, (head.delete_to or 0) - stored)
    if adopted:
        for first, last in _runs(change.rows):
            yield _Removal(head.since, first - 1, last, last - first + 1)


def _runs(found: Sequence[StoredEvent]) -> list[tuple[int, int]]:
    """The consecutive seqNrs, as first and last. On an adopted topic an append can replace events."""
    runs: list[tuple[int, int]] = []
    for seq_nr in sorted(stored.event.seq_nr for stored in found):
        if runs and runs[-1][1] + 1 == seq_nr:
            runs[-1] = runs[-1][0], seq_nr
        else:
            runs.append((seq_nr, seq_nr))
    return runs


def _chunks(found: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(found), _CHUNK):
        yield found[start : start + _CHUNK]
