"""Writes actions, and answers appends.

An append is one record. Whether it is void is decided at its place in the log, so that it is answered from the
fold up to its own cursor. On an adopted topic, where nothing is void, it is checked before it is written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from strandline.errors import Conflict, Gap, OutcomeUnknown, StrandlineError
from strandline.journal.action_log import ActionLog
from strandline.journal.entity_locks import EntityLocks
from strandline.journal.fold import Folded, Verdict, is_void
from strandline.journal.model import MAX_SEQ_NR, Append, Appended, Delete, Head, Pointer, Purge
from strandline.journal.reading import JournalReader, Place
from strandline.journal.storage.port import JournalStore
from strandline.journal.tail import Outcomes, Tail
from strandline.log.cursors import Position

_LOCKS = 256
_OTHER_LIFE = "is not the one that began at the given since; read it again"


class JournalWriter:
    def __init__(
        self, store: Callable[[], JournalStore], action_log: ActionLog, reader: JournalReader, locks: EntityLocks
    ) -> None:
        self._store = store
        self._log = action_log
        self._reader = reader
        self._shared_locks = locks
        # Threads of this node wait here, without asking the database again and again.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        #: The appends of this node that were void, by topic.
        self.void: Counter[str] = Counter()

    def append(self, place: Place, append: Append, append_id: str, value: bytes, *, retried: bool) -> Appended:
        """Conflict, with the pointer, if the append is void and, if `retried`, was not applied earlier."""
        if place.topic.adopted:
            return self._append_checked(place, append, value, retried=retried)
        tail = self._log.tail(place.topic, place.partition)
        outcomes = tail.expect(place.entity, append_id, self._store)
        try:
            [cursor] = self._log.write(place.topic, place.partition, [(place.entity, append, value)])
            head, verdict = outcomes.get(cursor) or _settled(tail, outcomes, cursor)
        finally:
            tail.release(place.entity, append_id)
        if verdict is Verdict.APPLIED:
            return Appended(append.last, str(cursor))
        self.void[place.topic.name] += 1
        return self._answer_void(place, append, head, cursor, retried=retried)

    def _append_checked(self, place: Place, append: Append, value: bytes, *, retried: bool) -> Appended:
        topic, partition, entity = place
        with self._locks[hash(place) % _LOCKS], self._shared_locks.held(topic.id, entity):
            # The end is enough: a race with a writer of another service is not fenced here anyway.
            end = self._log.raw.end(topic.name, partition)
            head = self._reader.head(place, end)
            if is_void(head, append):
                return self._answer_void(place, append, head, end, retried=retried)
            plain = msgspec.structs.replace(append, expected=None, since=None)
            [cursor] = self._log.write(topic, partition, [(entity, plain, value)])
        return Appended(append.last, str(cursor))

    def _answer_void(
        self, place: Place, append: Append, head: Head | None, until: Position, *, retried: bool
    ) -> Appended:
        first = self._applied(place, append, until) if retried else None
        if first is None:
            raise _conflict(place, append, head)
        return first

    def _applied(self, place: Place, append: Append, until: Position) -> Appended | None:
        """The answer of the append with this id and first seqNr, if one is stored. Its events may differ."""
        found: Appended | None = None
        with closing(self._reader.rows(place, append.first, MAX_SEQ_NR, until)) as rows:
            for row in rows:
                cursor, seq_nr = str(row.cursor), row.event.seq_nr
                is_first = found is None and seq_nr == append.first and row.append_id == append.id
                if not is_first and (found is None or found.cursor != cursor):
                    break
                found = Appended(seq_nr, cursor)
        return found

    def delete(self, place: Place, to: int, since: Position | None) -> None:
        """Conflict, with the pointer, if `since` is given and the journal has another life."""
        head = self._reader.head(place)
        if since is not None and (head is None or head.since != since):
            raise Conflict(f"{_state(place, head)} and {_OTHER_LIFE}", **_pointer(head))
        if head is None or min(to, head.seq_nr) <= (head.delete_to or 0):
            return
        delete = Delete(min(to, head.seq_nr), None if place.topic.adopted else head.since)
        self._log.write(place.topic, place.partition, [(place.entity, delete, None)])

    def purge(self, place: Place) -> None:
        self._log.write(place.topic, place.partition, [(place.entity, Purge(), None)])


def _settled(tail: Tail, outcomes: Outcomes, cursor: Position) -> Folded:
    try:
        return tail.settle(outcomes, cursor)
    except Gap:  # a retry does not help
        raise
    except StrandlineError as error:
        raise OutcomeUnknown(
            f"the append is stored at {cursor}, but it is unknown whether it is void: {error.detail}; read the "
            "journal, or repeat the append with the same append id"
        ) from error


def _state(place: Place, head: Head | None) -> str:
    now = "is absent" if head is None else f"is at {head.seq_nr}"
    return f"the journal {place.entity!r:.80} {now}"


def _conflict(place: Place, append: Append, head: Head | None) -> Conflict:
    why = _state(place, head)
    if append.since is not None and (head is None or head.since != append.since):
        why += f" and {_OTHER_LIFE}"
    elif append.expected is not None and append.expected != (0 if head is None else head.seq_nr):
        why += f", not at {append.expected} as expected; read it again"
    else:
        why += f"; an append must start above that, not at {append.first}"
    return Conflict(why, **_pointer(head))


def _pointer(head: Head | None) -> dict[str, Any]:
    return msgspec.structs.asdict(Pointer.of(head))
