"""How actions change a journal: pure functions.

`fold` gives the head of a journal after one more action. Readers, the writer of an append and the replicator fold
the same actions in log order. So all of them agree on which appends are void.

On an adopted topic, which kafka-journal writes too, actions are folded exactly as kafka-journal's replicator does.
It knows no void actions: an append moves the pointer to its last seqNr, even if that is a smaller number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from strandline.errors import Malformed
from strandline.journal import payloads
from strandline.journal.model import Append, Delete, Head, LoggedAction, Mark, Purge, StoredEvent
from strandline.log.cursors import Position

_MAX_MS = 2**63 - 1


class Verdict(Enum):
    """The effect of an action."""

    #: It changed the journal, or at least the cursor of its head.
    APPLIED = "applied"
    #: A condition of the action does not hold at its place in the log, so it changes nothing, for any reader.
    VOID = "void"
    #: It has no effect: a mark, a purge of an absent journal, or an action that the head includes already.
    NOTHING = "nothing"


class Folded(NamedTuple):
    head: Head | None
    verdict: Verdict


def fold(head: Head | None, logged: LoggedAction, *, adopted: bool = False) -> Folded:
    """The head after the action. None is an absent journal."""
    action = logged.action
    if isinstance(action, Mark) or (head is not None and logged.cursor <= head.cursor):
        return Folded(head, Verdict.NOTHING)
    if not adopted and is_void(head, action):
        return Folded(head, Verdict.VOID)
    if isinstance(action, Append):
        return Folded(_appended(head, logged, action, adopted=adopted), Verdict.APPLIED)
    if isinstance(action, Delete):
        return Folded(_deleted(head, logged, action), Verdict.APPLIED)
    return Folded(None, Verdict.NOTHING if head is None else Verdict.APPLIED)


def is_void(head: Head | None, action: Append | Delete | Purge) -> bool:
    """Whether a condition of the action does not hold for the journal as it is."""
    if isinstance(action, Purge):
        return action.if_cursor is not None and (head is None or head.cursor != action.if_cursor)
    if action.since is not None and (head is None or head.since != action.since):
        return True
    if isinstance(action, Delete):
        return False
    pointer = 0 if head is None else head.seq_nr
    return action.first <= pointer or action.expected not in {None, pointer}


def _appended(head: Head | None, logged: LoggedAction, action: Append, *, adopted: bool) -> Head:
    after = action.expire_after_ms
    expire_on = _expire_on(logged, after)
    if head is None:
        return Head(
            since=logged.cursor,
            cursor=logged.cursor,
            seq_nr=action.last,
            delete_to=action.first - 1 if adopted and action.first > 1 else None,
            created_ms=logged.timestamp_ms,
            updated_ms=logged.timestamp_ms,
            expire_after_ms=after,
            expire_on_ms=expire_on,
            origin=logged.origin,
        )
    return msgspec.structs.replace(
        head,
        cursor=logged.cursor,
        seq_nr=action.last,
        updated_ms=logged.timestamp_ms,
        expire_after_ms=after,
        expire_on_ms=expire_on,
    )


def _expire_on(logged: LoggedAction, after: int | None) -> int | None:
    """The end of the expiry. A record of Kafka has any timestamp, and the stores have 64 bits for a time."""
    return None if after is None else min(logged.timestamp_ms + after, _MAX_MS)


def _deleted(head: Head | None, logged: LoggedAction, action: Delete) -> Head:
    if head is None:  # this is how kafka-journal lets a journal start at a chosen seqNr
        return Head(
            since=logged.cursor,
            cursor=logged.cursor,
            seq_nr=action.to,
            delete_to=action.to,
            created_ms=logged.timestamp_ms,
            updated_ms=logged.timestamp_ms,
            origin=logged.origin,
        )
    deleted = head.delete_to or 0
    seq_nr = max(head.seq_nr, deleted)
    return msgspec.structs.replace(
        head,
        cursor=logged.cursor,
        seq_nr=seq_nr,
        delete_to=max(deleted, min(action.to, seq_nr)),
        updated_ms=logged.timestamp_ms,
    )


# -- replication


class JournalChange(msgspec.Struct, frozen=True):
    """What a batch of actions changes in one journal of the store.

    The steps, in this order: if `purged`, delete all rows of the life `before.since`, if there is one, and the
    snapshots of all lives that began before `purged`; if `deleted`, delete the rows of the life `head.since` up to
    and including `head.delete_to`; write `rows`, replacing rows of the same seqNr; write `head` as a whole, or
    delete the head if it is None. `purged` and `deleted` are cursors of actions, for engines that order writes by
    them.
    """

    entity: str
    before: Head | None
    head: Head | None
    #: Events of the life `head.since`, each seqNr once, without those that a later action of the batch deleted.
    rows: list[StoredEvent]
    #: The last action that ended a life: that of `before`, or one that began in this batch.
    purged: Position | None = None
    #: The last delete in the life of `head`. It is also set if `before` includes that delete already: on an engine
    #: without transactions the head may have been written and the rows not yet deleted.
    deleted: Position | None = None


class Plan(msgspec.Struct, frozen=True):
    """What a batch changes in a partition. Journals without a change are left out."""

    changes: list[JournalChange]
    #: The appends that are void.
    void: list[LoggedAction]
    #: Appends whose values could not be decoded, and why. They moved the pointer and have no events.
    malformed: list[tuple[LoggedAction, str]]


def plan_batch(heads: Mapping[str, Head], actions: Iterable[LoggedAction], *, adopted: bool = False) -> Plan:
    """Fold actions of one partition, in log order, onto the heads in the store; absent journals have none."""
    journals: dict[str, _Journal] = {}
    for logged in actions:
        journal = journals.get(logged.entity)
        if journal is None:
            journal = journals[logged.entity] = _Journal(logged.entity, heads.get(logged.entity))
        journal.add(logged, adopted=adopted)
    plan = Plan([], [], [])
    for journal in journals.values():
        plan.void.extend(journal.void)
        if journal.changed:
            plan.changes.append(journal.change(plan.malformed, adopted=adopted))
    return plan


class _Journal:
    """One journal of a batch. Values are decoded at the end, only those of appends that are still needed."""

    def __init__(self, entity: str, before: Head | None) -> None:
        self.void: list[LoggedAction] = []
        self._entity = entity
        self._before = self._head = before
        self._appends: list[LoggedAction] = []
        self._purged: Position | None = None
        self._deleted: Position | None = None

    @property
    def changed(self) -> bool:
        return self._head is not self._before or self._deleted is not None or self._purged is not None

    def add(self, logged: LoggedAction, *, adopted: bool) -> None:
        head = self._head
        self._head, verdict = fold(head, logged, adopted=adopted)
        if verdict is Verdict.APPLIED:
            self._note(logged)
        elif verdict is Verdict.VOID and isinstance(logged.action, Append):
            self.void.append(logged)
        elif isinstance(logged.action, Delete) and head is not None and head.since < logged.cursor:
            self._deleted = logged.cursor

    def _note(self, logged: LoggedAction) -> None:
        if isinstance(logged.action, Append):
            self._appends.append(logged)
        elif isinstance(logged.action, Delete):
            self._deleted = logged.cursor
        else:
            self._appends, self._deleted, self._purged = [], None, logged.cursor

    def change(self, malformed: list[tuple[LoggedAction, str]], *, adopted: bool) -> JournalChange:
        rows: dict[int, StoredEvent] = {}
        deleted = (self._head and self._head.delete_to) or 0
        for logged in self._appends:
            assert isinstance(logged.action, Append)  # noqa: S101 - only appends are noted
            if logged.action.last > deleted:
                try:
                    for row in payloads.rows(logged):
                        if row.event.seq_nr > deleted:
                            rows[row.event.seq_nr] = row
                except Malformed as error:
                    malformed.append((logged, error.detail))
        head = self._head
        if adopted and head is not None and self._appends:
            head = self._with_expiry(head)
        return JournalChange(self._entity, self._before, head, list(rows.values()), self._purged, self._deleted)

    def _with_expiry(self, head: Head) -> Head:
        """kafka-journal keeps the expiry of an append in its value."""
        last = self._appends[-1]
        after = payloads.expire_after_ms(last)
        return msgspec.structs.replace(head, expire_after_ms=after, expire_on_ms=_expire_on(last, after))
