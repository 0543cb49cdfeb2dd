"""A whole archive with its files on HDFS and S3 and its ledger in PostgreSQL."""

from __future__ import annotations

import uuid

import msgspec
import pyarrow.parquet as pq
import pytest
from archive_place import GRACE, NOON, ArchivePlace

from strandline.archive.model import HOUR_MS
from strandline.archive.verify import verify

ONE = NOON + HOUR_MS


@pytest.fixture(params=["hdfs", "s3"])
def place(request, postgres, tmp_path):
    name = uuid.uuid4().hex
    if request.param == "hdfs":
        url = f"{request.getfixturevalue('hdfs').url}/archive/{name}"
    else:
        url = request.getfixturevalue("s3").url(f"archive/{name}")
    made = ArchivePlace(tmp_path, ledger_url=postgres.url(postgres.new_database()), files_url=url, min_records=1)
    yield made
    made.close()


def test_an_archive_lives_through_hours_late_events_and_a_crash(place: ArchivePlace):
    """Flags, manifests and every event once, as in a directory."""
    place.create()
    archiver = place.working()
    ids = []
    for minute in range(1, 6):
        ids += place.publish(NOON + minute)
        place.step(archiver, NOON + (minute + 1) * 60_000)
    place.live_through(archiver, ONE + GRACE, every_ms=300_000)
    ids += place.publish(NOON + 9, ONE + 1, NOON - 90 * 24 * HOUR_MS)
    archiver.step(place.terms, everything=True)
    archiver = place.archiver()  # the one before has crashed
    place.live_through(archiver, ONE + HOUR_MS + GRACE, every_ms=300_000)
    place.propagate()
    verdicts = [verify(place.files, place.ledger, place.layout("orders"), hour) for hour in (NOON, ONE)]
    assert [(one.problems, one.revision, one.rows) for one in verdicts] == [((), 2, 6), ((), 1, 1)]
    assert place.files.look("2024-05-01/12/_READY") is not None
    assert place.files.look("2024-05-01/12/orders/_LATE") is not None
    listed = [file for hour in (-1, NOON, ONE) for file in place.ledger.files("orders", hour)]
    rows = [row for file in listed for row in pq.read_table(place.files.open(file.path)).to_pylist()]
    assert sorted(msgspec.json.decode(row["value"])["metadata"]["eid"] for row in rows) == sorted(ids)
    assert place.files.entries("_staging/orders") == []
