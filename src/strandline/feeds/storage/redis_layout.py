"""How a feed is stored in Redis: the keys, the head of a list, and reads of its end. Pure.

The first record of a list, its head, is an epoch or a checkpoint. Its metadata measures the records behind it, so
that most reads need only the end of the list, and most checkpoints only the records that are new.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from strandline.feeds.fold import fold, visible
from strandline.feeds.model import Entry
from strandline.feeds.records import ADD, CHECKPOINT, HISTORY, Record, decode, decode_id, encode, encode_id

#: A checkpoint leaves at least this many of the newest records out of those behind `ListHead.behind_top`.
RESERVE = 30
# Entries that are hidden or late may make a read need more records than it returns entries.
_MARGIN = 10
_MEASURES = struct.Struct(">8sIII8sI8s")
GENERATION_BYTES = 8
_LOWEST = bytes(8)
_METADATA_FLAG = 8
_PLAIN_FLAGS = frozenset({ADD, HISTORY, ADD | _METADATA_FLAG, HISTORY | _METADATA_FLAG})
_flags = itemgetter(0)
_id = itemgetter(slice(1, 9))
_time = itemgetter(slice(9, 17))
_RECORD_BYTES = 17


def list_key(feed: str) -> bytes:
    return b"strandline:feed:{%b}" % feed.encode()


def beside_key(feed: str) -> bytes:
    """The tombstones and the drop are beside the list, because they survive it."""
    return b"strandline:beside:{%b}" % feed.encode()


class ListHead(NamedTuple):
    """The head of a list and what it says about the `known` records behind it.

    Each of the first `plain` records is an addition and the only record of its id, and their ids rise. `ids` is
    the number of ids that count towards the cap, and `top` is the highest id. `behind_top` is the highest id of
    the first `behind` records. `generation` changes whenever records are removed.
    """

    record: Record
    generation: bytes
    known: int
    plain: int
    ids: int
    top: bytes
    behind: int
    behind_top: bytes


def decode_head(data: bytes) -> ListHead:
    record = decode(data)
    return ListHead(record, *_MEASURES.unpack(record.metadata or b""))


def lay_out(listed: Sequence[Record], ids: int, generation: bytes) -> list[bytes]:
    """The records of a compacted list as they are stored. `ids` is the number of ids that count."""
    head, *records = listed
    behind = max(0, len(records) - RESERVE)
    top = encode_id(records[-1].id) if records else _LOWEST
    behind_top = encode_id(records[behind - 1].id) if behind else _LOWEST
    measures = (generation, len(records), _plain(records), ids, top, behind, behind_top)
    return [encode(head._replace(metadata=_MEASURES.pack(*measures))), *map(encode, records)]


def _plain(records: Sequence[Record]) -> int:
    """The number of records before the first one that is not a plain addition of one record."""
    for number, record in enumerate(records):
        shared = number + 1 < len(records) and records[number + 1].id == record.id
        if record.kind > HISTORY or record.rank is not None or shared:
            return number
    return len(records)


def window_size(wanted: int, slack: int) -> int:
    """How many records from the end of a list are likely to contain its newest entries."""
    return slack + max(RESERVE, wanted + _MARGIN) + _MARGIN


def newest(head: ListHead, end: Sequence[bytes], before: int, wanted: int, cap: int) -> list[Entry] | None:
    """The newest entries of a list by its last records; None if older records may contain some of them.

    `before` is the number of records between the head and `end`, or more.
    """
    wanted = min(wanted, cap)
    found = _newest_plain(head.record, end, wanted)
    if found is None:
        found = visible(fold([head.record, *map(decode, end)]), cap)[:wanted]
    if before == 0 or wanted == 0:
        return found
    if len(found) < wanted:
        return None
    if before < head.plain:
        complete = found[-1].id >= decode_id(end[0][1:])  # what is before it has lower ids
    else:
        complete = before <= head.behind and found[-1].id > decode_id(head.behind_top)
    return found if complete else None


def _newest_plain(head: Record, end: Sequence[bytes], wanted: int) -> list[Entry] | None:
    """The newest entries if all records are plain additions; None if they must be folded.

    Most reads take this way, because it decodes only what they return.
    """
    if not _PLAIN_FLAGS.issuperset(map(_flags, end)):
        return None
    found = sorted(end, key=_id, reverse=True)[: wanted + 1]
    ids = list(map(_id, found))
    if not found or len(set(ids)) < len(ids) or min(map(_time, found)) < head.time.to_bytes(8):
        return None
    if head.kind == CHECKPOINT and ids[-1] <= encode_id(head.id):
        return None
    return [Entry(decode_id(one), _metadata(record)) for one, record in zip(ids, found[:wanted], strict=False)]


def _metadata(record: bytes) -> bytes | None:
    return record[_RECORD_BYTES:] if record[0] & _METADATA_FLAG else None
