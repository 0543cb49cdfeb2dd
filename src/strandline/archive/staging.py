"""What a task does with a range of one partition: write Parquet files in `_staging`, split by hour of event time.

Every row goes into exactly one file, of an hour or of the quarantine. Rows keep their order.
"""

from __future__ import annotations

import itertools
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline import failpoints
from strandline.archive import parquet
from strandline.archive.files import Files
from strandline.archive.model import HOUR_MS, Harvest, StagedFile
from strandline.archive.settings import ArchiveSettings
from strandline.archive.times import EventTimes
from strandline.log.reading import Batch

TOO_LARGE = "too large"
NO_TEXT = "not UTF-8"
FAR_FUTURE = "too far in the future"
FAR_PAST = "too far in the past"
LATE = "late"

_OPEN_FILES = 64
_PENDING_BYTES = 256 << 20


class Sorting(msgspec.Struct, frozen=True):
    """How events are sorted into hours; `now_ms` limits event times in the future."""

    time_field: str
    settings: ArchiveSettings
    now_ms: int


def stage(files: Files, directory: str, sorting: Sorting, partition: int, batches: Iterable[Batch]) -> Harvest:
    """Write the rows of a range into files of the directory."""
    times = EventTimes(sorting.time_field)
    rows = 0
    with HourWriters(files, directory, sorting.settings.file_bytes) as writers:
        for batch in batches:
            rows += len(batch)
            hours, bad = _sorted(batch, sorting, times)
            for hour_ms, part in hours:
                writers.put(batch.timeline, hour_ms, part)
            if bad is not None:
                writers.put(batch.timeline, -1, bad)
        failpoints.hit("archive.staging")
        staged = writers.close()
    newest = max((file.max_time_ms for file in staged), default=-1)
    return Harvest(partition, rows, newest, tuple(staged))


def rewrite(files: Files, directory: str, group: Sequence[StagedFile], reason: str = "") -> StagedFile:
    """Merge consecutive files into one; with a reason, into a quarantine file."""
    with parquet.StagedFileWriter(files, _new(directory), -1 if reason else group[0].hour_ms) as writer:
        for one in group:
            for rows in parquet.read(files, one.path):
                writer.write(_quarantined(rows, reason) if reason else rows)
        return writer.close()


def _quarantined(rows: pa.RecordBatch, reason: str) -> pa.RecordBatch:
    kept = [field for field in parquet.QUARANTINED if field.name != "reason"]
    columns = [rows[field.name].cast(field.type) for field in kept]
    return pa.RecordBatch.from_arrays([*columns, pa.repeat(reason, rows.num_rows)], schema=parquet.QUARANTINED)


def _new(directory: str) -> str:
    # A unique name: a retried task must not collide with the files of its first attempt.
    return f"{directory}/{uuid.uuid4().hex}.part"


class HourWriters:
    """The open files, by timeline and hour. The least recently used one is finished when there are too many."""

    def __init__(self, files: Files, directory: str, file_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._open: OrderedDict[tuple[int, int], parquet.StagedFileWriter] = OrderedDict()
        self._done: list[StagedFile] = []

    def put(self, timeline: int, hour_ms: int, rows: pa.RecordBatch) -> None:
        key = (timeline, hour_ms)
        writer = self._open.get(key)
        if writer is None:
            if len(self._open) >= _OPEN_FILES:
                self._finish(next(iter(self._open)))
            writer = self._open[key] = parquet.StagedFileWriter(self._files, _new(self._directory), hour_ms)
        self._open.move_to_end(key)
        writer.write(rows)
        if writer.bytes >= self._file_bytes:
            self._finish(key)
        elif sum(one.pending_bytes for one in self._open.values()) > _PENDING_BYTES:
            max(self._open.values(), key=lambda one: one.pending_bytes).flush()

    def _finish(self, key: tuple[int, int]) -> None:
        self._done.append(self._open[key].close())
        del self._open[key]

    def close(self) -> list[StagedFile]:
        for key in [*self._open]:
            self._finish(key)
        return self._done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._open.values():
            writer.discard()


def _sorted(
    batch: Batch, sorting: Sorting, times: EventTimes
) -> tuple[Iterable[tuple[int, pa.RecordBatch]], pa.RecordBatch | None]:
    """The rows of every hour, and those for the quarantine."""
    rows, values = batch.records, batch.records["value"]
    published = rows["timestamp"].to_numpy()
    unreadable = _unreadable(values, sorting.settings.max_record_bytes)
    if unreadable:
        values = pc.if_else(pa.array(_mask(len(batch), unreadable)), pa.scalar(None, values.type), values)
    event_times, timeless = times.of(values, published)
    # Of several reasons the first check that failed counts.
    bad = {**_out_of_range(event_times, published, sorting), **timeless, **unreadable}
    if not bad:
        return _by_hour(batch, rows, event_times), None
    reasons = pa.array([bad[row] for row in sorted(bad)], pa.string())
    good = np.flatnonzero(~_mask(len(batch), bad))
    quarantined = _framed(batch, rows.take(sorted(bad)), parquet.QUARANTINED, reason=reasons)
    return _by_hour(batch, rows.take(good), event_times[good]), quarantined


def _framed(batch: Batch, rows: pa.RecordBatch, schema: pa.Schema, **more: pa.Array) -> pa.RecordBatch:
    """Records of a batch with all columns of a file's schema."""
    same = {"event_type": batch.event_type, "partition": int(batch.partition), "timeline": batch.timeline}
    columns = more | {name: rows[name] for name in rows.schema.names}
    arrays = [
        pa.repeat(pa.scalar(same[field.name], field.type), rows.num_rows)
        if field.name in same
        else columns[field.name].cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _mask(rows: int, marked: Iterable[int]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(rows, np.bool_)
    mask[[*marked]] = True
    return mask


def _unreadable(values: pa.Array, max_bytes: int) -> dict[int, str]:
    found: dict[int, str] = {}
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        found = {row: NO_TEXT for row, value in enumerate(values.to_pylist()) if not _is_text(value)}
    too_long = pc.greater(pc.binary_length(values), max_bytes).fill_null(False)
    return found | dict.fromkeys(np.flatnonzero(too_long.to_numpy(False)).tolist(), TOO_LARGE)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _out_of_range(
    event_times: npt.NDArray[np.int64], published: npt.NDArray[np.int64], sorting: Sorting
) -> dict[int, str]:
    """Limits count from the time of publication, or from now if that time is in the future."""
    base = np.where(published > 0, np.minimum(published, sorting.now_ms), sorting.now_ms)
    past = (event_times < base - sorting.settings.max_past_ms) | (event_times < 0)
    future = event_times > base + sorting.settings.max_future_ms
    found = dict.fromkeys(np.flatnonzero(past).tolist(), FAR_PAST)
    return found | dict.fromkeys(np.flatnonzero(future).tolist(), FAR_FUTURE)


def _by_hour(
    batch: Batch, rows: pa.RecordBatch, event_times: npt.NDArray[np.int64]
) -> Iterable[tuple[int, pa.RecordBatch]]:
    """The archived rows of every hour, in their order."""
    if not len(event_times):
        return
    hours = event_times // HOUR_MS
    if hours.min() != hours.max():
        order = np.argsort(hours, kind="stable")
        rows, event_times, hours = rows.take(order), event_times[order], hours[order]
    archived = _framed(batch, rows, parquet.ARCHIVED, event_time=pa.array(event_times))
    starts = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(hours)]
    for start, end in itertools.pairwise(starts):
        yield int(hours[start]) * HOUR_MS, archived.slice(start, end - start)
