"""The archive on real HDFS and on a real S3 server, from events to flagged hours."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import pyarrow.parquet as pq
import pytest
from archive_place import GRACE, NOON, ArchivePlace

from strandline.archive.files import Files, connect
from strandline.archive.model import HOUR_MS
from strandline.archive.propagator import Propagator
from strandline.archive.verify import verify

ONE = NOON + HOUR_MS
TEN_MINUTES = 600_000
HOUR = "2024-05-01/12"


@pytest.fixture(params=["hdfs", "s3"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    service, name = request.getfixturevalue(request.param), uuid.uuid4().hex
    files = connect(f"{service.url}/archive/{name}" if request.param == "hdfs" else service.url(f"archive/{name}"))
    yield files
    files.close()


@pytest.fixture
def place(make: Callable[..., ArchivePlace], files: Files) -> ArchivePlace:
    place = make()
    place.files = files
    place.propagator = Propagator(place.ledger, files, place.layout)
    place.create(partitions=2)
    return place


def ids_in(files: Files, folder: str) -> Counter[str]:
    """All events in the data files of a directory."""
    found: Counter[str] = Counter()
    for entry in files.entries(folder):
        if entry.name.endswith(".parquet"):
            with files.open(f"{folder}/{entry.name}") as file:
                values = pq.read_table(file)["value"].to_pylist()
            found.update(msgspec.json.decode(value)["metadata"]["eid"] for value in values)
    return found


def test_hours_are_archived_flagged_and_verified(place: ArchivePlace, files: Files):
    """A late event raises the revision of the hour and of the flags above."""
    archiver = place.working()
    ids = place.publish(NOON + 1, NOON + 2) + place.publish(NOON + 3, partition=1)
    place.live_through(archiver, ONE + GRACE, TEN_MINUTES)
    assert ids_in(files, f"{HOUR}/orders/data") == dict.fromkeys(ids, 1)
    place.propagate()
    assert msgspec.json.decode(files.read(f"{HOUR}/_READY"))["revision"] == 1

    ids += place.publish(NOON + 4)
    place.live_through(archiver, ONE + HOUR_MS + GRACE, TEN_MINUTES)
    place.propagate()
    assert ids_in(files, f"{HOUR}/orders/data") == dict.fromkeys(ids, 1)
    assert msgspec.json.decode(files.read(f"{HOUR}/_READY"))["revision"] == 2
    for hour_ms in (NOON, ONE):
        assert verify(files, place.ledger, place.layout("orders"), hour_ms).problems == ()
    assert files.entries("_staging/orders") == []
    assert [entry.name for entry in files.entries(f"{HOUR}/orders")] == ["_LATE", "_READY", "data"]


def test_a_missing_flag_comes_back_from_the_ledger(place: ArchivePlace, files: Files):
    """A deleted flag is written again from the ledger."""
    archiver = place.working()
    place.publish(NOON + 1)
    place.live_through(archiver, ONE + GRACE, TEN_MINUTES)
    content = files.read(f"{HOUR}/orders/_READY")
    files.delete(f"{HOUR}/orders/_READY")
    again = place.archiver()
    place.live_through(again, ONE + 2 * HOUR_MS, TEN_MINUTES)
    assert files.read(f"{HOUR}/orders/_READY") == content


def test_the_next_one_clears_away_what_was_staged(place: ArchivePlace, files: Files):
    """The next archiver publishes all decided files once and deletes the staged ones."""
    archiver = place.working()
    ids = place.publish(NOON + 1, NOON + 2)
    place.live_through(archiver, NOON + TEN_MINUTES, TEN_MINUTES)
    with files.create("_staging/orders/1-left/0.part") as left:
        left.write(b"half a file")
    place.clock.advance(7_000)
    following = place.archiver()
    place.live_through(following, ONE + GRACE, TEN_MINUTES)
    assert ids_in(files, f"{HOUR}/orders/data") == dict.fromkeys(ids, 1)
    assert files.entries("_staging/orders") == []
