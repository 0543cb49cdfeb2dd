"""The event type `feeds.operations`: every write of a caller is in the log before it is applied.

An operation is one event, `{"operation", "operation_time", "feeds", "entries"}`, or several if it is larger than
an event may be: parts of an append or a delete name other feeds, and parts of a set with the same time unite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

import msgspec

from strandline.errors import Conflict, Invalid, NotFound
from strandline.feeds import rules, times
from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    DropFeed,
    Entry,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
    feeds_of,
    narrowed,
)
from strandline.log.local import LocalLog
from strandline.log.model import EventType

OPERATIONS = "feeds.operations"
_Name = Literal["append", "delete", "set", "merge", "unmerge", "drop"]
_NAMES: dict[type[Operation], _Name] = {
    AppendEntry: "append",
    DeleteEntry: "delete",
    SetFeed: "set",
    MergeEntries: "merge",
    UnmergeEntries: "unmerge",
    DropFeed: "drop",
}
# Of the fields without names and entries, and of the quotes around a name or the keys of an entry.
_FRAME_BYTES = 200
_QUOTES_BYTES = 4
_KEYS_BYTES = 50
_T = TypeVar("_T")


class RecordedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ids are texts, because many readers of JSON lose digits of large numbers."""

    id: str
    metadata: bytes | None = None


class RecordedOperation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of `feeds.operations`. The entries of a delete or an unmerge have only ids."""

    operation: _Name
    operation_time: str
    feeds: tuple[str, ...]
    entries: tuple[RecordedEntry, ...] = ()


class OperationLog:
    def __init__(self, log: LocalLog, max_event_bytes: int) -> None:
        self._log = log
        self._max_event_bytes = max_event_bytes

    def record(self, operation: Operation) -> None:
        """Durable when this returns. OutcomeUnknown if the operation may or may not be in the log."""
        events = [*encoded(operation, self._max_event_bytes)]
        try:
            self._log.publish(OPERATIONS, events).raise_for_failed()
        except NotFound:
            with suppress(Conflict):  # another process was first
                # One partition: a replay applies operations in the order in which they were given.
                self._log.create(EventType(OPERATIONS, owning_application="strandline", partitions=1))
            self._log.publish(OPERATIONS, events).raise_for_failed()


def encoded(operation: Operation, max_bytes: int) -> Iterator[bytes]:
    """The events of an operation, each within a number of bytes."""
    room = max_bytes - _FRAME_BYTES
    if isinstance(operation, AppendEntry | DeleteEntry):
        room -= sum(map(_entry_bytes, entries_of(operation)))
        for feeds in _parts(operation.feeds, _name_bytes, room):
            yield _event(narrowed(operation, feeds), entries_of(operation))
    else:
        for entries in _parts(entries_of(operation), _entry_bytes, room):
            yield _event(operation, entries)


def recorded(operation: Operation) -> RecordedOperation:
    """The whole operation as one event, however large it is."""
    return _recorded(operation, entries_of(operation))


def name_of(operation: Operation) -> str:
    """The name of the kind of an operation."""
    return _NAMES[type(operation)]


def decoded(event: bytes) -> Operation:
    """The operation, or part of one, of an event. Invalid if the event is not an operation."""
    try:
        found = to_operation(msgspec.json.decode(event, type=RecordedOperation))
    except (msgspec.MsgspecError, ValueError, UnicodeError, IndexError) as error:
        raise Invalid(f"the event is no operation on feeds: {error}") from error
    # Everybody may publish to the event type.
    times.checked(found.time)
    rules.names(feeds_of(found))
    for entry in entries_of(found):
        rules.entry(entry)
    return found


def to_operation(event: RecordedOperation) -> Operation:
    time, feeds = int(event.operation_time), event.feeds
    entries = tuple(Entry(int(entry.id), entry.metadata) for entry in event.entries)
    match event.operation:
        case "append":
            return AppendEntry(time, entries[0], feeds)
        case "delete":
            return DeleteEntry(time, entries[0].id, feeds)
        case "set":
            return SetFeed(time, feeds[0], entries)
        case "merge":
            return MergeEntries(time, feeds[0], entries)
        case "unmerge":
            return UnmergeEntries(time, feeds[0], tuple(entry.id for entry in entries))
    return DropFeed(time, feeds[0])


def entries_of(operation: Operation) -> Sequence[Entry]:
    """The entries that an operation names; of a delete and an unmerge without metadata."""
    if isinstance(operation, AppendEntry):
        return (operation.entry,)
    if isinstance(operation, DeleteEntry):
        return (Entry(operation.id),)
    if isinstance(operation, UnmergeEntries):
        return [*map(Entry, operation.ids)]
    return () if isinstance(operation, DropFeed) else operation.entries


def _recorded(operation: Operation, entries: Sequence[Entry]) -> RecordedOperation:
    shown = tuple(RecordedEntry(str(entry.id), entry.metadata) for entry in entries)
    return RecordedOperation(_NAMES[type(operation)], str(operation.time), feeds_of(operation), shown)


def _event(operation: Operation, entries: Sequence[Entry]) -> bytes:
    return msgspec.json.encode(_recorded(operation, entries))


def _entry_bytes(entry: Entry) -> int:
    return _KEYS_BYTES + len(entry.metadata or b"") * 4 // 3


def _name_bytes(name: str) -> int:
    return len(name) + _QUOTES_BYTES


def _parts(items: Sequence[_T], size: Callable[[_T], int], limit: int) -> Iterator[tuple[_T, ...]]:
    """Parts within a number of bytes, each with at least one item."""
    part: list[_T] = []
    used = 0
    for item in items:
        if part and used + size(item) > limit:
            yield tuple(part)
            part, used = [], 0
        part.append(item)
        used += size(item)
    yield tuple(part)
