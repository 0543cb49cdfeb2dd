"""Checks that the files of an hour are those that its flag and the ledger list."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.archive import flags
from strandline.archive.files import Digest, Files
from strandline.archive.flags import ListedFile, Manifest
from strandline.archive.layout import Layout
from strandline.archive.ledger import Ledger
from strandline.archive.model import hour_name
from strandline.archive.room import HourCheck
from strandline.errors import NotFound


def verify(
    files: Files, ledger: Ledger, layout: Layout, hour_ms: int, after: str = "", seconds: float = math.inf
) -> HourCheck:
    """Compare an hour's files with its flag, and the flag with the ledger.

    Files are read completely, one by one in the order of their names, beginning after `after`, until the time is
    over; `next` of the result is then set. The first call checks the flags, the last one searches for other files.
    """
    deadline = time.monotonic() + seconds
    beside, above = (flags.read(files, path) for path in layout.flags(hour_ms))
    flag = above or beside
    listed = () if flag is None else flag.files
    folder = layout.data(hour_ms)
    problems: list[str] = []
    if not after:
        problems += _of_flags(beside, above, _decided(ledger, layout.event_type, hour_ms))
    checked: list[ListedFile] = []
    todo = deque(sorted((file for file in listed if file.name > after), key=lambda file: file.name))
    while todo and (not checked or time.monotonic() < deadline):
        checked.append(todo.popleft())
        problems += _of_file(files, f"{folder}/{checked[-1].name}", checked[-1])
    if not todo:
        found = {entry.name for entry in files.entries(folder) if entry.name.endswith(".parquet")}
        unlisted = found - {file.name for file in listed}
        problems += [f"{name} is not listed in the flag" for name in sorted(unlisted)]
    return HourCheck(
        event_type=layout.event_type,
        hour=hour_name(hour_ms),
        revision=flag.revision if flag else 0,
        files=len(checked),
        rows=sum(file.rows for file in checked),
        problems=tuple(problems),
        next=checked[-1].name if todo else "",
    )


def _decided(ledger: Ledger, event_type: str, hour_ms: int) -> Manifest | None:
    """The flag that the ledger has decided; None if it has decided none."""
    for hour in ledger.hours.between(hour_ms, hour_ms + 1, event_type):
        if hour.revision:
            gaps = ledger.hours.gaps(event_type, hour_ms, hour_ms)
            return flags.manifest(hour, ledger.files(event_type, hour_ms), gaps)
    return None


def _of_flags(beside: Manifest | None, above: Manifest | None, decided: Manifest | None) -> Iterator[str]:
    if decided is None:
        yield "the ledger has no flag for this hour"
    for where, flag in (("the data directory", beside), ("the directory above", above)):
        if flag is None:
            yield f"there is no flag in {where}"
        elif decided is not None and flag != decided:
            yield (
                f"the flag in {where} (revision {flag.revision}) differs from the ledger's "
                f"(revision {decided.revision})"
            )
    if above is not None and above.rows != sum(file.rows for file in above.files):
        yield "row count mismatch: the files listed in the flag do not add up to its total"


def _of_file(files: Files, path: str, listed: ListedFile) -> Sequence[str]:
    try:
        if files.digest(path) != Digest(listed.bytes, listed.sha256):
            return [f"{listed.name} is not the file that was published: its size or checksum differs"]
        with files.open(path) as file:
            rows = pq.read_metadata(file).num_rows
    except NotFound:
        return [f"{listed.name} is missing"]
    except pa.ArrowException as error:
        return [f"{listed.name} is not Parquet: {error}"]
    return [] if rows == listed.rows else [f"{listed.name} has {rows} rows, not {listed.rows}"]
