"""Events from a file or a pipe: one JSON object per line, or one JSON array."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from strandline.log import event_json

# Keeps a publish well below the server's limit for a body, for any batch size.
_BATCH_BYTES = 8 << 20
# How long the first event of a batch waits for more.
_FLUSH_SECONDS = 0.1
_READ_BYTES = 1 << 16


class Line(NamedTuple):
    """One event and its line number, or its number in the array."""

    number: int
    text: bytes


class Pipe:
    """The lines of a pipe or a terminal, and whether the next one comes soon."""

    def __init__(self, file: BinaryIO) -> None:
        self._descriptor = file.fileno()
        self._lines: deque[bytes] = deque()
        #: The chunks of the line that is not complete.
        self._rest: list[bytes] = []
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        while self._lines or not self._ended:
            if self._lines:
                yield self._lines.popleft()
            else:
                self._receive()

    def comes_by(self, deadline: float) -> bool:
        """Wait until a line that is not blank is there, or the end of the input. False after the deadline."""
        while not self._ended and not any(line.strip() for line in self._lines):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._descriptor], [], [], left)[0]:
                return False
            self._receive()
        return True

    def _receive(self) -> None:
        """Wait for bytes, and keep the lines that are complete."""
        found = os.read(self._descriptor, _READ_BYTES)
        self._ended = not found
        first, *others = found.split(b"\n")
        self._rest.append(first)
        if others or self._ended:
            *complete, rest = [b"".join(self._rest), *others, *[b""] * self._ended]
            self._lines += complete
            self._rest = [rest]


def opened(file: BinaryIO) -> Iterable[bytes]:
    """The lines of the file; a `Pipe` unless it is a regular file."""
    return file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else Pipe(file)


def events(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield events while the lines are read. Skips blank lines; publishing refuses invalid ones."""
    raw = iter(lines)
    numbered = (Line(number, text.strip()) for number, text in enumerate(raw, 1))
    for number, text in numbered:
        if text.startswith(b"["):
            items = event_json.to_items(b"\n".join([text, *raw]), sys.maxsize)
            yield from (Line(number, item) for number, item in enumerate(items, 1))
            return
        if text:
            yield Line(number, text)
            break
    yield from (line for line in numbered if line.text)


def _always(_deadline: float) -> bool:
    return True


def batches(
    lines: Iterable[Line], size: int, comes_by: Callable[[float], bool] = _always
) -> Iterator[Sequence[Line]]:
    """The lines in groups of `size`; groups of large events are smaller.

    A group ends early if `comes_by` says that no line comes by a deadline, so that lines of a pipe do not wait.
    """
    group: list[Line] = []
    weight, deadline = 0, 0.0
    for line in lines:
        if group and weight + len(line.text) > _BATCH_BYTES:
            yield group
            group, weight = [], 0
        if not group:
            deadline = time.monotonic() + _FLUSH_SECONDS
        group.append(line)
        weight += len(line.text)
        if len(group) == size or not comes_by(deadline):
            yield group
            group, weight = [], 0
    if group:
        yield group
