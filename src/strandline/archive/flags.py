"""`_READY`: its content, and how it is written so that its revision never goes backwards.

The content comes from the ledger: a revision has the same text whichever process writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from strandline import failpoints
from strandline.archive.files import Files
from strandline.archive.layout import Layout
from strandline.archive.model import ArchivedFile, Barrier, ExpiredRange, Hour, Period
from strandline.clock import to_rfc3339
from strandline.errors import Conflict, Unavailable
from strandline.log.cursors import Position

_ATTEMPTS = 100
_BEGIN = "BEGIN"


class ListedFile(msgspec.Struct, frozen=True):
    """A file of an hour, in its `data` directory. Cursors are those of its first and last record."""

    name: str
    partition: str
    first_cursor: str
    last_cursor: str
    rows: int
    bytes: int
    min_time: str
    max_time: str
    sha256: str


class ListedBarrier(msgspec.Struct, frozen=True):
    """Every event of the hour up to these cursors is in its files. The cursors were read at `read_at` or later."""

    read_at: str
    cursors: dict[str, str]


class SkippedRange(msgspec.Struct, frozen=True):
    """Events that expired before they were archived. `after_cursor` is BEGIN if none before them was archived."""

    partition: str
    after_cursor: str
    last_cursor: str
    events: int


class Manifest(msgspec.Struct, frozen=True):
    """The content of an event type's `_READY`. Events in `skipped` may be of this hour, and are in no file."""

    event_type: str
    hour: str
    revision: int
    epoch: int
    flagged_at: str
    rows: int
    bytes: int
    files: tuple[ListedFile, ...]
    barrier: ListedBarrier | None
    skipped: tuple[SkippedRange, ...] = ()


class PeriodManifest(msgspec.Struct, frozen=True):
    """The content of the `_READY` of an hour or a day: the revisions of the directories in it."""

    path: str
    start: str
    revision: int
    children: dict[str, int]


class _Revision(msgspec.Struct, frozen=True):
    revision: int


def manifest(hour: Hour, files: Sequence[ArchivedFile], gaps: Sequence[ExpiredRange]) -> Manifest:
    return Manifest(
        event_type=hour.event_type,
        hour=to_rfc3339(hour.hour_ms),
        revision=hour.revision,
        epoch=hour.epoch,
        flagged_at=to_rfc3339(hour.flagged_ms),
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        files=tuple(_listed(file) for file in sorted(files, key=lambda file: file.path)),
        barrier=_listed_barrier(hour.barrier) if hour.barrier else None,
        skipped=tuple(
            SkippedRange(str(gap.partition), str(gap.after or _BEGIN), str(gap.last), gap.records) for gap in gaps
        ),
    )


def _listed_barrier(barrier: Barrier) -> ListedBarrier:
    ends = {str(partition): str(end) for partition, end in sorted(barrier.ends.items())}
    return ListedBarrier(to_rfc3339(barrier.read_ms), ends)


def _listed(file: ArchivedFile) -> ListedFile:
    return ListedFile(
        name=file.path.rsplit("/", 1)[-1],
        partition=str(file.partition),
        first_cursor=str(Position(file.timeline, file.first)),
        last_cursor=str(Position(file.timeline, file.last)),
        rows=file.rows,
        bytes=file.bytes,
        min_time=to_rfc3339(file.min_time_ms),
        max_time=to_rfc3339(file.max_time_ms),
        sha256=file.sha256,
    )


def read(files: Files, path: str) -> Manifest | None:
    """An event type's flag; None if it is missing or cannot be decoded."""
    seen = files.look(path)
    try:
        return msgspec.json.decode(seen.data, type=Manifest) if seen else None
    except msgspec.MsgspecError:
        return None


def write_hour(
    files: Files, layout: Layout, hour: Hour, listed: Sequence[ArchivedFile], gaps: Sequence[ExpiredRange] = ()
) -> None:
    """Write the flag to both places, each checked on its own; an existing one of this revision stays."""
    data = _text(manifest(hour, listed, gaps))
    for path in layout.flags(hour.hour_ms):
        failpoints.hit("archive.write")
        _put(files, path, data, hour.revision)


def write_period(files: Files, path: str, period: Period) -> None:
    content = PeriodManifest(period.path, to_rfc3339(period.start_ms), period.revision, dict(period.children))
    _put(files, path, _text(content), period.revision)


def write_late(files: Files, layout: Layout, hour_ms: int) -> None:
    """Write the marker that says that files were added after the flag."""
    data = _text({"event_type": layout.event_type, "hour": to_rfc3339(hour_ms)})
    path = layout.late(hour_ms)
    seen = files.look(path)
    if seen is None or seen.data != data:
        files.replace(path, data, seen.version if seen else None)


def _text(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


def _put(files: Files, path: str, data: bytes, revision: int) -> None:
    """Replace the file unless it has the same or a later revision."""
    for _ in range(_ATTEMPTS):
        seen = files.look(path)
        if seen is not None and _revision_of(seen.data) >= revision:
            return
        with suppress(Conflict):
            files.replace(path, data, seen.version if seen else None)
            return
    raise Unavailable(f"other processes keep replacing {path}; try again", retry_after=1)


def _revision_of(data: bytes) -> int:
    """The revision of a flag; 0 for any other content."""
    try:
        return msgspec.json.decode(data, type=_Revision).revision
    except msgspec.MsgspecError:
        return 0
