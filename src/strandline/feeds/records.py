"""The records of a feed: what engines store, and how a record is encoded. Pure.

A feed is a list of records in order of arrival; `fold.py` computes its state. A record is a kind, an id, an
operation time and metadata. Encoded: 1 byte for the kind and flags, 8 bytes for the id (big-endian with the sign
bit flipped, so that bytes compare as ids do), 8 bytes for the time, 4 bytes for the rank if there is one, and the
metadata.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
)

# The additions have the lowest numbers, and the records that are not about one id the highest.
#: A new entry.
ADD: Final = 1
#: An entry of a merge or a set: an addition that does not count as new when it arrives.
HISTORY: Final = 2
#: Hides the additions of the id up to the time.
UNMERGE: Final = 3
#: The tombstone of an id.
DELETE: Final = 4
#: A set: moves the epoch to the time. The id is 0.
EPOCH: Final = 5
#: A drop. The id is 0.
DROP: Final = 6
#: The epoch (the time) and the trim floor (the id) at this place of the list. Its metadata, if any, is for the
#: engine that wrote it.
CHECKPOINT: Final = 7

_KIND = 0x07
_HAS_METADATA = 0x08
_HAS_RANK = 0x10
_HEAD = struct.Struct(">BQQ")
_RANK = struct.Struct(">I")
_SIGN = 1 << 63


class Record(NamedTuple):
    """`rank` is the place of the id in the order of first arrival, if it is not after all records before it."""

    kind: int
    id: int
    time: int
    metadata: bytes | None = None
    rank: int | None = None


def of_operation(operation: Operation) -> tuple[Record, ...]:
    """The records that an operation adds to each of its feeds."""
    time = operation.time
    if isinstance(operation, AppendEntry):
        return (Record(ADD, operation.entry.id, time, operation.entry.metadata),)
    if isinstance(operation, DeleteEntry):
        return (Record(DELETE, operation.id, time),)
    if isinstance(operation, UnmergeEntries):
        return tuple(Record(UNMERGE, entry_id, time) for entry_id in operation.ids)
    if isinstance(operation, SetFeed | MergeEntries):
        history = tuple(Record(HISTORY, entry.id, time, entry.metadata) for entry in operation.entries)
        return (Record(EPOCH, 0, time), *history) if isinstance(operation, SetFeed) else history
    return (Record(DROP, 0, time),)


def encode(record: Record) -> bytes:
    kind, entry_id, time, metadata, rank = record
    flags = kind | (_HAS_METADATA if metadata is not None else 0) | (_HAS_RANK if rank is not None else 0)
    head = _HEAD.pack(flags, entry_id + _SIGN, time)
    return head + (b"" if rank is None else _RANK.pack(rank)) + (metadata or b"")


def decode(data: bytes) -> Record:
    flags, entry_id, time = _HEAD.unpack_from(data)
    start, rank = _HEAD.size, None
    if flags & _HAS_RANK:
        (rank,) = _RANK.unpack_from(data, start)
        start += _RANK.size
    metadata = data[start:] if flags & _HAS_METADATA else None
    return Record(flags & _KIND, entry_id - _SIGN, time, metadata, rank)


def encode_id(entry_id: int) -> bytes:
    """An id as it is in an encoded record."""
    return (entry_id + _SIGN).to_bytes(8)


def decode_id(data: bytes) -> int:
    return int.from_bytes(data[:8]) - _SIGN
