"""What other tools read in the directory of an archive, as `docs/how-to/archive.md` says."""

from __future__ import annotations

import duckdb
import pyarrow.dataset as ds
import pytest
from archive_place import GRACE, NOON, ArchivePlace
from files_reader import check_files

from strandline.archive.model import DAY_MS, HOUR_MS

HIVE = "date=%Y-%m-%d/hour=%H/{event_type}"


def archived(place: ArchivePlace) -> None:
    """Archive two hours with three events, and one event in the quarantine."""
    place.create()
    archiver = place.working()
    place.publish(NOON, NOON + 1, NOON + HOUR_MS + 1)
    place.publish(NOON + 9 * DAY_MS)
    place.live_through(archiver, NOON + 2 * HOUR_MS + GRACE, every_ms=HOUR_MS // 4)
    assert (len(place.data_files()), len(place.quarantined())) == (2, 1)


@pytest.mark.parametrize("template", ["%Y-%m-%d/%H/{event_type}", HIVE])
def test_data_are_read_and_quarantined_records_are_not(make, template):
    """DuckDB by a pattern, pyarrow by the directory: three events, whatever the template."""
    place = make(template=template)
    archived(place)
    pattern = f"{place.root}/**/*.parquet"
    assert sorted(duckdb.read_parquet(pattern).select('"offset"').fetchall()) == [(0,), (1,), (2,)]
    assert ds.dataset(place.root, format="parquet").count_rows() == 3
    assert check_files(place.root).quarantined.total() == 1


def test_hive_directories_are_columns(make):
    """DuckDB and pyarrow make columns of the date and the hour."""
    place = make(template=HIVE)
    archived(place)
    found = (
        duckdb.read_parquet(f"{place.root}/**/*.parquet", hive_partitioning=True)
        .filter("hour = 13")
        .select('"offset"')
    )
    assert found.fetchall() == [(2,)]
    table = ds.dataset(place.root, format="parquet", partitioning="hive").to_table(columns=["date", "hour"])
    assert [{"date": "2024-05-01", "hour": hour} for hour in (12, 12, 13)] == table.to_pylist()
