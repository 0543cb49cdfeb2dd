"""Events from a file or a pipe: one JSON object per line, or one JSON array."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from strandline.log import event_json

# Keeps a publish well below the server's limit for a body, for any batch size.
_BATCH_BYTES = 8 << 20


class Line(NamedTuple):
    """One event and its line number, or its number in the array."""

    number: int
    text: bytes


def events(file: BinaryIO) -> Iterator[Line]:
    """Yield events while the file is read. Skips blank lines; publishing refuses invalid ones."""
    lines = (Line(number, text.strip()) for number, text in enumerate(file, 1))
    for number, text in lines:
        if text.startswith(b"["):
            items = event_json.to_items(text + b"\n" + file.read(), sys.maxsize)
            yield from (Line(number, item) for number, item in enumerate(items, 1))
            return
        if text:
            yield Line(number, text)
            break
    yield from (line for line in lines if line.text)


def batches(lines: Iterable[Line], size: int) -> Iterator[Sequence[Line]]:
    """The lines in groups of `size`; groups of large events are smaller."""
    group: list[Line] = []
    weight = 0
    for line in lines:
        if group and weight + len(line.text) > _BATCH_BYTES:
            yield group
            group, weight = [], 0
        group.append(line)
        weight += len(line.text)
        if len(group) == size:
            yield group
            group, weight = [], 0
    if group:
        yield group
