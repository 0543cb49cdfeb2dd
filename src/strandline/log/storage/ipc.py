"""Arrow IPC record batches of a few records, written without Arrow, which costs as much as their commit.

The message is byte for byte what Arrow writes for columns of type `binary` without nulls. Its metadata is a
FlatBuffer of 64-bit words. Only the sizes and places in it differ from message to message.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

# The words before and after the size of the body: where the fields of `Message` and `RecordBatch` are.
_MESSAGE = (0x14, 0x000500060016000C, 0x0000000C000C0008, 0x0000001800040300)
_BATCH = (0x000C0018000A0000, 0x0000000A00080004)
_BUFFERS = 3  # of a column: validity, which is empty without nulls; offsets; data
_PADDING = [bytes(number) for number in range(8)]


def message(columns: Sequence[Sequence[bytes]]) -> bytes:
    """The batch with these columns, which have the same number of rows. OverflowError above 2 GB."""
    rows = len(columns[0])
    offsets_bytes = 4 * (rows + 1)
    buffers: list[int] = []
    body: list[bytes] = []
    end = 0
    for values in columns:
        offsets = array("i", accumulate(map(len, values), initial=0))
        size, data = offsets[-1], end + offsets_bytes + (offsets_bytes & 4)
        buffers += (end, 0, end, offsets_bytes, data, size)
        body += (offsets.tobytes(), _PADDING[offsets_bytes & 4], *values, _PADDING[-size & 7])
        end = data + size + (-size & 7)
    count = len(columns)
    pack, metadata_bytes, nodes_at = _metadata(count)
    words = (*_MESSAGE, end, *_BATCH, nodes_at, rows, _BUFFERS * count << 32, *buffers, count << 32)
    return b"".join((pack(-1, metadata_bytes, *words, *(rows, 0) * count), *body))


@cache
def _metadata(columns: int) -> tuple[Callable[..., bytes], int, int]:
    """How to pack the metadata, its size, and the word that refers to the nodes."""
    words = 11 + 8 * columns
    return struct.Struct(f"<iI{words}q").pack, 8 * words, 0x10 << 32 | 28 + 48 * columns
