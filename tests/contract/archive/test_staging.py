"""From records to staged Parquet files: every row is in exactly one file, by its hour, in order."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.archive import parquet, staging
from strandline.archive.files.local import LocalFiles
from strandline.archive.model import HOUR_MS, Harvest, StagedFile
from strandline.archive.settings import ArchiveSettings
from strandline.archive.staging import FAR_FUTURE, FAR_PAST, NO_TEXT, TOO_LARGE, Sorting
from strandline.archive.times import NO_JSON, NOT_A_TIME
from strandline.clock import parse_rfc3339, to_rfc3339
from strandline.log.reading import Batch
from strandline.log.records import READ

NOON = parse_rfc3339("2024-05-01T12:00:00Z")
SETTINGS = ArchiveSettings(
    max_future_ms=HOUR_MS, max_past_ms=24 * HOUR_MS, max_record_bytes=10_000, file_bytes=100_000_000
)
SORTING = Sorting("metadata.occurred_at|@timestamp", SETTINGS, NOON + HOUR_MS)


@pytest.fixture
def files(tmp_path) -> LocalFiles:
    return LocalFiles(str(tmp_path))


def event(time_ms: int, **more: object) -> bytes:
    return msgspec.json.encode({"metadata": {"occurred_at": to_rfc3339(time_ms)}, **more})


def batch(values: Sequence[bytes | None], first: int = 0, timeline: int = 1, published: int = NOON) -> Batch:
    records = pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(first, first + len(values))),
            pa.array(np.full(len(values), published)),
            pa.array([b"key"] * len(values), pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([[{"key": "h", "value": b"\xff"}]] * len(values), READ.field("headers").type),
        ],
        schema=READ,
    )
    return Batch("orders", "3", timeline, records)


def stage(files: LocalFiles, *batches: Batch, **changes: Any) -> Harvest:
    sorting = msgspec.structs.replace(SORTING, settings=replace(SETTINGS, **changes))
    return staging.stage(files, "_staging/run", sorting, 3, batches)


def rows(files: LocalFiles, file: StagedFile) -> pa.Table:
    return pq.read_table(files.open(file.path))


def offsets(files: LocalFiles, file: StagedFile) -> list[int]:
    return rows(files, file)["offset"].to_pylist()


def by_hour(harvest: Harvest) -> dict[int, StagedFile]:
    return {file.hour_ms: file for file in harvest.files}


def test_a_file_has_the_columns_that_readers_expect(files):
    """A row has the event's time, the time of its publication, and the unchanged JSON text."""
    value = event(NOON + 5, note="ü")
    (file,) = stage(files, batch([value], first=41, timeline=2)).files
    (row,) = rows(files, file).to_pylist()
    assert rows(files, file).schema.names == [
        *("event_type", "partition", "timeline", "offset", "timestamp", "event_time", "key", "value", "headers")
    ]
    assert (row["event_type"], row["partition"], row["timeline"], row["offset"]) == ("orders", 3, 2, 41)
    assert [round(row[name].timestamp() * 1000) for name in ("timestamp", "event_time")] == [NOON, NOON + 5]
    assert (row["key"], row["value"].encode()) == (b"key", value)
    assert row["headers"] == [{"key": "h", "value": b"\xff"}]


def test_what_is_said_of_a_file_is_true(files, tmp_path):
    """Rows, size, checksum, offsets and times of a file match its content."""
    values = [event(NOON + 30), event(NOON + 10), event(NOON + 20)]
    harvest = stage(files, batch(values, first=7))
    (file,) = harvest.files
    content = (tmp_path / file.path).read_bytes()
    assert (file.rows, file.first, file.last, file.bytes) == (3, 7, 9, len(content))
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert (file.min_time_ms, file.max_time_ms, harvest.max_time_ms) == (NOON + 10, NOON + 30, NOON + 30)
    assert (file.kind, file.hour_ms, file.partition, file.timeline) == ("data", NOON, 3, 1)


def test_files_are_written_with_zstd_and_never_look_like_data(files):
    """Readers of `*.parquet` find no staged file."""
    (file,) = stage(files, batch([event(NOON)])).files
    metadata = pq.read_metadata(files.open(file.path))
    assert metadata.row_group(0).column(7).compression == "ZSTD"
    assert file.path.startswith("_staging/run/")
    assert file.path.endswith(".part")


def test_rows_go_to_the_hour_of_their_events_in_their_order(files):
    """Rows of mixed batches go to their hour, exact to the millisecond."""
    dice = random.Random(1)
    times = [NOON + dice.randrange(-3 * HOUR_MS, HOUR_MS) for _ in range(3000)] + [NOON, NOON - 1]
    parts = [batch([event(ms) for ms in times[at : at + 700]], first=at) for at in range(0, len(times), 700)]
    harvest = stage(files, *parts)
    expected: dict[int, list[int]] = {}
    for offset, ms in enumerate(times):
        expected.setdefault(ms - ms % HOUR_MS, []).append(offset)
    assert {hour: offsets(files, file) for hour, file in by_hour(harvest).items()} == expected
    assert harvest.rows == sum(file.rows for file in harvest.files) == len(times)


def test_a_timeline_has_files_of_its_own(files):
    """Offsets restart with a timeline."""
    harvest = stage(files, batch([event(NOON)], first=9), batch([event(NOON)], first=0, timeline=2))
    assert [(file.timeline, file.first) for file in harvest.files] == [(1, 9), (2, 0)]


def test_nothing_is_made_of_nothing(files, tmp_path):
    """Without rows no file is created."""
    assert stage(files) == Harvest(3, 0, -1, ())
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff{}", NO_TEXT),
        (b"{", NO_JSON),
        (b'{"metadata":{"occurred_at":"soon"}}', NOT_A_TIME),
        (event(NOON + HOUR_MS + 1), FAR_FUTURE),
        (event(NOON - 24 * HOUR_MS - 1), FAR_PAST),
        (event(NOON, note="x" * 10_000), TOO_LARGE),
        (b"\xff" * 10_001, TOO_LARGE),
    ],
)
def test_what_cannot_be_archived_is_quarantined_as_it_came(files, value, reason):
    """A bad record is stored with its cursor and reason; its time is ignored, and the others are archived."""
    harvest = stage(files, batch([event(NOON), value, event(NOON + 1)], first=4))
    good, bad = sorted(harvest.files, key=lambda file: file.kind)
    assert offsets(files, good) == [4, 6]
    assert (bad.kind, bad.hour_ms, bad.rows, bad.first, bad.last) == ("quarantine", -1, 1, 5, 5)
    (row,) = rows(files, bad).to_pylist()
    assert (row["value"], row["reason"], row["timeline"], row["offset"]) == (value, reason, 1, 5)
    assert (row["event_type"], row["partition"], row["key"]) == ("orders", 3, b"key")
    assert (harvest.rows, harvest.max_time_ms) == (3, NOON + 1)


def test_the_limits_themselves_are_fine(files):
    """The largest record and both limits of the time are accepted."""
    edge = event(NOON, note="")
    values = [
        event(NOON + HOUR_MS),
        event(NOON - 24 * HOUR_MS),
        event(NOON, note="x" * (10_000 - len(edge))),
    ]
    assert {file.kind for file in stage(files, batch(values)).files} == {"data"}


def test_a_batch_of_nothing_but_bad_rows_has_no_time(files):
    """A batch of bad rows does not advance the largest event time."""
    harvest = stage(files, batch([b"{", b"{"]))
    assert [(file.kind, file.rows) for file in harvest.files] == [("quarantine", 2)]
    assert harvest.max_time_ms == -1


def test_a_record_that_claims_to_come_from_the_future_is_measured_from_now(files):
    """A future or missing timestamp of a record is not trusted."""
    far = NOON + 9 * HOUR_MS
    (ahead,) = stage(files, batch([event(far)], published=far)).files
    (without,) = stage(files, batch([event(NOON)], published=-1)).files
    assert (ahead.kind, without.kind) == ("quarantine", "data")


def test_records_without_a_value_are_archived(files):
    """A record without a value is in the hour of its publication."""
    (file,) = stage(files, batch([None])).files
    assert (file.hour_ms, rows(files, file)["value"].to_pylist()) == (NOON, [None])


def test_files_end_when_they_are_large_enough(files):
    """The next rows go to a new file, and no row is lost."""
    dice = random.Random(2)
    parts = [batch([event(NOON, n=dice.random()) for _ in range(1000)], first=at * 1000) for at in range(300)]
    harvest = stage(files, *parts, file_bytes=1_000_000)
    assert len(harvest.files) > 1
    assert [n for file in harvest.files for n in offsets(files, file)] == [*range(300_000)]


def test_hours_without_end_do_not_take_files_without_end(files, monkeypatch):
    """The least recently used file is closed; no row is lost or duplicated."""
    monkeypatch.setattr(staging, "_OPEN_FILES", 3)
    dice = random.Random(3)
    times = [NOON - dice.randrange(8) * HOUR_MS for _ in range(200)]
    harvest = stage(files, *(batch([event(ms)], first=at) for at, ms in enumerate(times)))
    found = sorted(n for file in harvest.files for n in offsets(files, file))
    assert found == [*range(200)]
    for hour in {file.hour_ms for file in harvest.files}:
        ends = sorted((file.first, file.last) for file in harvest.files if file.hour_ms == hour)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(ends))


def test_rows_that_wait_do_not_take_memory_without_end(files, monkeypatch):
    """The hour with the most pending bytes is written first."""
    monkeypatch.setattr(staging, "_PENDING_BYTES", 1000)
    parts = [batch([event(NOON - hour * HOUR_MS)] * 20, first=hour * 20) for hour in range(5)]
    harvest = stage(files, *parts)
    assert sorted(n for file in harvest.files for n in offsets(files, file)) == [*range(100)]


def test_a_task_that_fails_leaves_no_files(files, tmp_path):
    """A failed task deletes its unfinished files."""

    def failing():
        yield batch([event(NOON)])
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        staging.stage(files, "_staging/run", SORTING, 3, failing())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_task_that_is_tried_again_does_not_meet_itself(files):
    """Every attempt uses new file names."""
    first, second = stage(files, batch([event(NOON)])), stage(files, batch([event(NOON)]))
    assert first.files[0].path != second.files[0].path
    assert first.files[0].sha256 == second.files[0].sha256


def test_small_files_are_merged_into_one(files):
    """A merge keeps the given order and updates the description of the file."""
    parts = [stage(files, batch([event(NOON + at)] * 10, first=at * 10)).files[0] for at in range(5)]
    merged = staging.rewrite(files, "_staging/run", parts)
    assert offsets(files, merged) == [*range(50)]
    assert (merged.first, merged.last, merged.rows) == (0, 49, 50)
    assert (merged.min_time_ms, merged.max_time_ms, merged.hour_ms) == (NOON, NOON + 4, NOON)
    assert rows(files, merged).schema == parquet.ARCHIVED


def test_rows_of_an_hour_can_be_quarantined_afterwards(files):
    """Quarantined rows get the reason and are otherwise unchanged."""
    (file,) = stage(files, batch([event(NOON), event(NOON + 1)])).files
    moved = staging.rewrite(files, "_staging/run", [file], "late")
    assert (moved.kind, moved.hour_ms, moved.rows, moved.max_time_ms) == ("quarantine", -1, 2, -1)
    table = rows(files, moved)
    assert table.schema == parquet.QUARANTINED
    assert table["reason"].to_pylist() == ["late", "late"]
    assert table["value"].to_pylist() == [event(NOON), event(NOON + 1)]
