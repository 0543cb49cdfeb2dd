"""Each sentence of the seed on files, offsets, shutdown, flags and their propagation, tested on whole archives.

`tests/unit/test_archive_seed.py` has the sentences on shifts alone.
"""

from __future__ import annotations

import pytest
from archive_place import GRACE, MINUTE, NOON, ArchivePlace

from strandline.archive.model import HOUR_MS, StoredPartition
from strandline.archive.tasks import InProcess
from strandline.errors import Unavailable
from strandline.log.cursors import Position
from strandline.log.model import Options

ONE = NOON + HOUR_MS


# -- files and offsets


def test_paths_are_based_on_the_time_of_each_message(place: ArchivePlace):
    """The seed: “<YYYY>-<MM>-<DD>/<HH>/<topic>/data/<boom file>”."""
    archiver = place.working()
    place.publish(NOON + 1, NOON - HOUR_MS * 13)
    archiver.stop(place.terms)
    folders = [path.parent.relative_to(place.root).as_posix() for path in place.data_files()]
    assert folders == ["2024-04-30/23/orders/data", "2024-05-01/12/orders/data"]


def test_the_first_shift_starts_at_the_stored_offset(place: ArchivePlace):
    """The seed: “It looks into ZooKeeper and grabs the offset that it needs to start consuming at”."""
    place.publish(NOON + 1)
    place.archiver().stop(place.terms)
    place.publish(NOON + 2)
    place.archiver().stop(place.terms)
    assert [row["offset"] for row in place.rows()] == [0, 1]


def test_without_an_offset_it_starts_at_the_beginning(place: ArchivePlace):
    """The seed: “If no offset is found, it starts at 0”."""
    place.publish(NOON + 1, NOON + 2)
    place.archiver().stop(place.terms)
    assert [row["offset"] for row in place.rows()] == [0, 1]


@pytest.mark.parametrize(("setting", "offsets"), [("earliest", [2]), ("latest", [])])
def test_an_offset_out_of_range_goes_by_the_setting(make, setting, offsets):
    """The seed: “The latest (most recent) or earliest (oldest) offset”."""
    place = make(on_unavailable=setting, retention_waits=False)
    place.create(options=Options(HOUR_MS))
    place.archiver().stop(place.terms)
    place.publish(NOON + 1, NOON + 2)
    place.clock.advance(2 * HOUR_MS)
    place.publish(NOON + 2 * HOUR_MS)
    place.platform.log.upkeep.purge()
    place.archiver().stop(place.terms)
    assert [row["offset"] for row in place.rows()] == offsets


# -- finishing and shutting down


class Broken(InProcess):
    """A runner that cannot write files."""

    def stage(self, tasks):
        if tasks:
            raise Unavailable("the disk is gone")
        return []


def test_metadata_is_stored_only_after_the_files_are_closed(place: ArchivePlace):
    """The seed: “Only ever persist an offset … once the previous hour's boom files have been closed off”."""
    archiver = place.working()
    before = place.stored()
    place.publish(NOON + 1)
    archiver._collector._runner = Broken()
    place.clock.advance(HOUR_MS)
    with pytest.raises(Unavailable, match="the disk is gone"):
        archiver.step(place.terms)
    assert place.stored() == before


def test_a_failure_while_finishing_aborts(place: ArchivePlace, monkeypatch):
    """The seed: “If an exception is thrown while the previous shift is finishing … the worker calls abort()”."""
    archiver = place.working()
    ids = place.publish(NOON + 1)
    place.step(archiver, ONE)
    before = place.stored()

    def failing(*_):
        raise Unavailable("no ledger")

    with monkeypatch.context() as patch:
        patch.setattr(place.ledger, "decide", failing)
        with pytest.raises(Unavailable, match="no ledger"):
            place.step(archiver, ONE + GRACE)
    archiver.abort()
    assert (place.stored(), place.staged(), place.data_files()) == (before, [], [])
    place.step(place.archiver())
    assert place.ids_in(NOON) == dict.fromkeys(ids, 1)


def test_an_abort_deletes_unfinished_files_of_every_shift(make):
    """The seed: “Delete all open/unfinished boom files regardless of associated sprint”."""
    place = make(min_records=1)
    place.create()
    archiver = place.working()
    place.publish(NOON + 1)
    place.step(archiver, ONE)
    place.publish(ONE + 1)
    place.step(archiver)
    assert len(place.staged()) == 2
    archiver.abort()
    assert place.staged() == []


def test_metadata_is_updated_hourly_whatever_the_timestamps_are(place: ArchivePlace):
    """The seed: “The metadata updates exist 100% independant of the timestamps within the messages”."""
    archiver = place.working()
    place.publish(NOON - 20 * HOUR_MS)
    for hour in (1, 2, 3):
        place.live_through(archiver, NOON + hour * HOUR_MS + GRACE)
        assert {one.end_ms for one in place.stored().values()} == {NOON + hour * HOUR_MS}


def test_the_latest_timestamp_of_the_hour_is_remembered(place: ArchivePlace):
    """The seed: “It'll remember the latest timestamp that it ever parsed … and reliably store that”."""
    archiver = place.working()
    place.publish(NOON + 5 * MINUTE, NOON + 9 * MINUTE, NOON + MINUTE)
    place.live_through(archiver, ONE + GRACE)
    assert place.stored()[0] == StoredPartition(Position(1, 2), NOON + 9 * MINUTE, 1, NOON, ONE)


# -- the flag writer


def test_the_earliest_timestamp_of_all_partitions_decides(make):
    """The seed: “The earliest of the stored maxTimestamps for all it's partitons”."""
    place = make(ready_rule="timestamps")
    place.create(partitions=3)
    archiver = place.working()
    for partition, time_ms in enumerate((NOON + 5, NOON, NOON + 9)):
        place.publish(time_ms, partition=partition)
    place.live_through(archiver, ONE + GRACE)
    assert place.flagged()[-1] == "01/11"
    place.publish(ONE + 1, partition=1)
    place.live_through(archiver, ONE + HOUR_MS + GRACE)
    assert place.flagged()[-1] == "01/13"


def test_a_flag_that_exists_is_not_written_again(place: ArchivePlace):
    """The seed: “Only if a ready flag doesn't already exist”."""
    archiver = place.working()
    place.live_through(archiver, ONE + GRACE)
    paths = [place.root / path for path in place.layout("orders").flags(NOON)]
    before = [path.stat().st_mtime_ns for path in paths]
    place.live_through(archiver, ONE + 3 * HOUR_MS + GRACE)
    assert [path.stat().st_mtime_ns for path in paths] == before


def test_the_flag_goes_into_both_directories(place: ArchivePlace):
    """The seed: “Into the …/<topic>/data directory AND to the …/<topic> directory”."""
    archiver = place.working()
    place.live_through(archiver, ONE + GRACE)
    assert (place.root / "2024-05-01/12/orders/data/_READY").is_file()
    assert (place.root / "2024-05-01/12/orders/_READY").is_file()


def test_a_flag_is_that_of_one_topic_and_one_hour(place: ArchivePlace):
    """The seed: “This is a per topic flag that is written into a specific hourly directory”."""
    place.create("clicks")
    place.live_through(place.working(), ONE + GRACE)
    assert place.flag(NOON) is not None
    assert (place.flag(ONE), place.flag(NOON, "clicks")) == (None, None)


def test_the_hourly_directory_is_made(place: ArchivePlace):
    """The seed: “The hourly directory is created if one doesn't exist”."""
    assert not (place.root / "2024-05-01/12").exists()
    place.live_through(place.working(), ONE + GRACE)
    assert [path.name for path in (place.root / "2024-05-01/12/orders/data").iterdir()] == ["_READY"]


# -- propagation


def archive_all(place: ArchivePlace, until_ms: int, *names: str) -> None:
    place.clock.advance(until_ms - place.clock.now_ms())
    for name in names:
        place.archiver(name).stop(place.terms)


def test_an_hourly_directory_is_ready_when_all_its_children_are(both: ArchivePlace):
    """The seed: “It checks all child directories (topics …). If they all do it creates …/<HH>/_READY”."""
    archive_all(both, ONE + GRACE, "orders")
    both.propagate()
    assert both.period("2024-05-01/12") is None
    archive_all(both, ONE + GRACE, "clicks")
    both.propagate()
    assert both.period("2024-05-01/12") is not None


def test_a_daily_directory_is_ready_when_all_its_hours_are(both: ArchivePlace):
    """The seed: “It then checks all the child directories (hours …). If they all do it creates …/_READY”."""
    archive_all(both, NOON + 12 * HOUR_MS, "orders", "clicks")
    both.propagate()
    assert both.period("2024-05-01") is None
    archive_all(both, NOON + 12 * HOUR_MS + GRACE, "orders", "clicks")
    both.propagate()
    assert both.period("2024-05-01") is not None


def test_the_traversal_is_depth_first(both: ArchivePlace, monkeypatch):
    """The seed: “It performs a depth first traversal”: no directory is flagged before those in it."""
    written: list[str] = []
    replace = both.files.replace
    monkeypatch.setattr(both.files, "replace", lambda path, *rest: (written.append(path), replace(path, *rest)))
    archive_all(both, NOON + 12 * HOUR_MS + GRACE, "orders", "clicks")
    both.propagate()
    assert written[-1] == "2024-05-01/_READY"
    for place_of, path in enumerate(written):
        below = [at for at, other in enumerate(written) if other.startswith(path.removesuffix("_READY"))]
        assert max(below) == place_of


def test_topics_with_common_paths_are_flagged_together(make):
    """The seed: “A unique list of topics with common HDFS output paths”."""
    place = make(look_back_hours=1, template="%Y-%m-%d/%H/{event_type},clicks=web/%Y-%m-%d/%H/{event_type}")
    for name in ("orders", "refunds", "clicks"):
        place.create(name)
    archive_all(place, ONE + GRACE, "orders", "clicks")
    place.propagate()
    assert place.period("web/2024-05-01/12") is not None
    assert place.period("2024-05-01/12") is None
    archive_all(place, ONE + GRACE, "refunds")
    place.propagate()
    assert {*place.period("2024-05-01/12")["children"]} == {"2024-05-01/12/orders", "2024-05-01/12/refunds"}
