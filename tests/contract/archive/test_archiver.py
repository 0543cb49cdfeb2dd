"""The archive of one event type, from the log to flagged hours."""

from __future__ import annotations

import msgspec
import pytest
from archive_place import GRACE, MINUTE, NOON, ArchivePlace, reasons

from strandline.archive.file_publisher import packs
from strandline.archive.model import HOUR_MS, Counts, StagedFile, StoredPartition
from strandline.archive.tasks import InProcess
from strandline.errors import LeaseLost, StrandlineError
from strandline.log.cursors import Position
from strandline.log.model import Options, StorageInfo
from strandline.log.storage.registry import SqliteConfiguration

ONE = NOON + HOUR_MS


def test_an_hour_goes_from_the_log_to_its_flag(place: ArchivePlace):
    """An hour is collected in its shift, then published and flagged when the shift is finished."""
    archiver = place.working()
    ids = place.publish(NOON + 1, NOON + 2) + place.publish(NOON + 3, partition=1)
    place.live_through(archiver, ONE + GRACE - 1)
    assert place.flag(NOON) is None
    assert place.data_files() == []
    place.step(archiver, ONE + GRACE)
    assert place.flagged() == ["01/10", "01/11", "01/12"]
    assert place.ids_in(NOON) == dict.fromkeys(ids, 1)
    assert [path.name for path in place.data_files()] == [
        "orders-0000-0001-000000000000000000-000000000000000001.parquet",
        "orders-0001-0001-000000000000000000-000000000000000000.parquet",
    ]
    assert place.staged() == []


def test_what_comes_in_the_grace_is_in_the_hour(place: ArchivePlace):
    """Events of the grace are in their hour; the next shift is published up to there as well."""
    archiver = place.working()
    first = place.publish(NOON + 1)
    place.live_through(archiver, ONE + GRACE - 1)
    last = place.publish(ONE - 1, ONE + 5)
    place.step(archiver, ONE + GRACE)
    assert place.ids_in(NOON) == dict.fromkeys([*first, last[0]], 1)
    assert place.ids() == dict.fromkeys([*first, *last], 1)
    assert place.stored()[0].position == Position(1, 2)


def test_data_of_an_hour_before_the_term_make_it_due(place: ArchivePlace):
    """An hour that gets data before its event type was configured is flagged too, also below flagged hours."""
    archiver = place.working()
    early, earlier = NOON - 5 * HOUR_MS, NOON - 9 * HOUR_MS
    first = place.publish(early + 1)
    place.live_through(archiver, ONE + GRACE + MINUTE)
    assert place.flagged() == ["01/07", "01/10", "01/11", "01/12"]
    assert place.ids_in(early) == dict.fromkeys(first, 1)
    second = place.publish(earlier + 1)
    place.live_through(archiver, ONE + HOUR_MS + GRACE + MINUTE)
    assert place.flagged() == ["01/03", "01/07", "01/10", "01/11", "01/12", "01/13"]
    assert place.ids_in(earlier) == dict.fromkeys(second, 1)
    place.propagate()
    assert place.period("2024-05-01/03") is not None


def test_a_manifest_tells_what_is_in_the_hour(place: ArchivePlace):
    """A manifest has files with rows, bytes, cursors, times and checksums; totals; and the barrier."""
    archiver = place.archiver()
    place.publish(NOON + 1, NOON + 2)
    place.publish(NOON + 9, partition=1)
    place.live_through(archiver, ONE + GRACE)
    flag = place.flag(NOON)
    assert (flag["event_type"], flag["hour"]) == ("orders", "2024-05-01T12:00:00.000Z")
    assert (flag["revision"], flag["epoch"], flag["rows"]) == (1, 1, 3)
    assert flag["bytes"] == sum(path.stat().st_size for path in place.data_files())
    first = flag["files"][0]
    assert (first["partition"], first["rows"]) == ("0", 2)
    assert (first["first_cursor"], first["last_cursor"]) == (
        "001-0001-000000000000000000",
        "001-0001-000000000000000001",
    )
    assert (first["min_time"], first["max_time"]) == ("2024-05-01T12:00:00.001Z", "2024-05-01T12:00:00.002Z")
    assert place.files.digest(f"2024-05-01/12/orders/data/{first['name']}").sha256 == first["sha256"]
    assert flag["barrier"] == {
        "read_at": "2024-05-01T13:00:30.000Z",
        "cursors": {"0": "001-0001-000000000000000001", "1": "001-0001-000000000000000000"},
    }


def test_an_idle_partition_without_any_batch_does_not_hold_the_hour_back(place: ArchivePlace):
    """Without any event the timer finishes the shift and creates the directories of the flags."""
    archiver = place.archiver()
    place.live_through(archiver, ONE + GRACE)
    assert place.flagged() == ["01/10", "01/11", "01/12"]
    assert place.flag(NOON)["files"] == []
    idle = StoredPartition(Position(1, -1), ONE, 1, NOON, ONE)
    assert place.stored() == {0: idle, 1: idle}


@pytest.mark.parametrize("traffic", ["steady", "none", "old events only", "one partition idle", "until the end"])
def test_a_flag_comes_within_a_minute_of_the_grace(make, traffic):
    """If the archive does not lag, the flag follows the grace by at most a minute, with the default timer."""
    place = make()
    place.create(partitions=2)
    archiver = place.working()
    now = NOON + GRACE + 777  # the timer is not aligned with hours
    flagged = None
    while flagged is None and now < ONE + 10 * MINUTE:
        close = ONE - 5_000 < now < ONE + GRACE
        now += place.settings.interval_ms if close or now > ONE else 20_000
        place.clock.advance(now - place.clock.now_ms())
        if traffic in {"steady", "one partition idle"} or (traffic == "until the end" and close):
            place.publish(now)
        if traffic == "steady":
            place.publish(now, partition=1)
        if traffic == "old events only":
            place.publish(NOON - 5 * MINUTE)
        archiver.step(place.terms)
        flagged = place.flag(NOON)
    assert flagged is not None
    assert now <= ONE + GRACE + MINUTE


def test_what_is_stored_of_a_shift(place: ArchivePlace):
    """Position, largest event time, number, start and end are stored in one transaction with the files."""
    archiver = place.archiver()
    place.publish(NOON + 5, NOON + 1)
    place.live_through(archiver, ONE + GRACE)
    assert place.stored()[0] == StoredPartition(Position(1, 1), NOON + 5, 1, NOON, ONE)
    place.live_through(archiver, ONE + HOUR_MS + GRACE)
    assert place.stored()[0] == StoredPartition(Position(1, 1), ONE + HOUR_MS, 2, ONE, ONE + HOUR_MS)


def test_an_idle_shift_that_is_stopped_early_stores_the_present(place: ArchivePlace):
    """An early stop stores the current time, because the hour is not complete yet."""
    archiver = place.archiver()
    place.step(archiver, NOON + 20 * MINUTE)
    archiver.stop(place.terms)
    assert place.stored()[0] == StoredPartition(Position(1, -1), NOON + 20 * MINUTE, 1, NOON, NOON + 20 * MINUTE)


def test_a_stop_archives_what_is_there(place: ArchivePlace):
    """A stop archives uncollected records too, and the next start continues from there."""
    archiver = place.archiver()
    first = place.publish(NOON + 1)
    archiver.stop(place.terms)
    assert place.ids() == dict.fromkeys(first, 1)
    second = place.publish(NOON + 2)
    place.archiver().stop(place.terms)
    assert place.ids() == dict.fromkeys(first + second, 1)


def test_a_stop_between_two_shifts_finishes_both_at_once(place: ArchivePlace):
    """One decision has the files of both shifts and the timestamp of the second one."""
    archiver = place.working()
    ids = place.publish(NOON + 1, partition=1)
    place.step(archiver, ONE)
    ids += place.publish(ONE + 1, partition=1)
    place.clock.advance(10_000)
    archiver.stop(place.terms)
    assert place.ids() == dict.fromkeys(ids, 1)
    assert place.stored()[1] == StoredPartition(Position(1, 1), ONE + 1, 2, ONE, ONE + 10_000)


def test_an_abort_leaves_nothing_and_stores_nothing(place: ArchivePlace):
    """Collected records are read again after an abort."""
    archiver = place.working()
    ids = place.publish(NOON + 1)
    stored = place.stored()
    archiver.step(place.terms, everything=True)
    assert len(place.staged()) == 1
    archiver.abort()
    assert (place.staged(), place.data_files(), place.stored()) == ([], [], stored)
    place.archiver().stop(place.terms)
    assert place.ids() == dict.fromkeys(ids, 1)


def test_after_a_long_stop_all_missed_hours_get_their_flags(place: ArchivePlace):
    """Thirty missed hours are flagged in order with one barrier, as soon as the archive has caught up."""
    archiver = place.archiver()
    place.live_through(archiver, ONE + GRACE, every_ms=5 * MINUTE)
    archiver.stop(place.terms)
    flags = place.flagged()
    ids = []
    for _ in range(30):
        ids += place.publish(place.clock.now_ms())
        place.clock.advance(HOUR_MS)
    place.step(place.archiver(), ONE + 30 * HOUR_MS + 5 * MINUTE)
    assert len(place.flagged()) == len(flags) + 30
    assert place.flagged()[-1] == "02/18"
    assert place.ids() == dict.fromkeys(ids, 1)
    barriers = {place.flag(ONE + n * HOUR_MS)["barrier"]["read_at"] for n in range(30)}
    assert barriers == {"2024-05-02T19:05:00.000Z"}


def test_a_backlog_is_published_while_it_is_read(make):
    """A crash loses at most one round of a backlog; hours are flagged only after all of it."""
    place = make(max_records=10)
    place.create()
    archiver = place.archiver()
    ids = place.publish(*(NOON + n for n in range(35)))
    report = place.step(archiver, ONE + GRACE)
    assert (report.lag, len(place.ids())) == ({0: 25}, 10)
    assert "01/12" not in place.flagged()
    while not place.step(archiver).caught_up:
        assert "01/12" not in place.flagged()
    assert "01/12" in place.flagged()
    assert place.ids_in(NOON) == dict.fromkeys(ids, 1)


def test_many_new_records_are_collected_before_the_end_of_the_shift(make):
    """Few records are collected only at the end of the shift, to avoid small files."""
    place = make(min_records=10)
    place.create()
    archiver = place.working()
    place.publish(*range(NOON, NOON + 9))
    place.live_through(archiver, NOON + 5 * MINUTE)
    assert place.staged() == []
    place.publish(NOON + 9)
    place.step(archiver)
    assert (len(place.staged()), place.data_files()) == (1, [])
    place.publish(NOON + 10)
    place.live_through(archiver, NOON + 10 * MINUTE)
    assert (len(place.staged()), place.data_files()) == (1, [])


def test_small_files_of_an_hour_are_merged_before_they_are_published(make):
    """One file for each partition and timeline is published."""
    place = make(min_records=1)
    place.create(partitions=2)
    archiver = place.working()
    ids = []
    for minute in range(6):
        ids += place.publish(NOON + minute) + place.publish(NOON + minute, partition=1)
        place.live_through(archiver, NOON + (minute + 2) * MINUTE)
    assert len(place.staged()) == 12
    place.live_through(archiver, ONE + GRACE)
    assert [path.name for path in place.data_files()] == [
        "orders-0000-0001-000000000000000000-000000000000000005.parquet",
        "orders-0001-0001-000000000000000000-000000000000000005.parquet",
    ]
    assert place.ids_in(NOON) == dict.fromkeys(ids, 1)
    assert [row["offset"] for row in place.rows(place.data_files()[:1])] == [*range(6)]


def test_bad_records_are_quarantined_and_counted(place: ArchivePlace):
    """Bad records do not stop the archive; rows read are rows archived plus quarantined."""
    archiver = place.archiver()
    ids = place.publish(NOON + 1, NOON + 5 * HOUR_MS, NOON - 40 * 24 * HOUR_MS)
    place.live_through(archiver, ONE + GRACE)
    assert place.ids() == {ids[0]: 1}
    assert reasons(place.quarantined()) == {"too far in the future": 1, "too far in the past": 1}
    assert [(row["partition"], row["timeline"], row["offset"]) for row in place.quarantined()] == [
        (0, 1, 1),
        (0, 1, 2),
    ]
    assert place.counts() == Counts(3, 1, 0, 2)
    assert place.stored()[0].max_timestamp_ms == NOON + 1


def test_records_are_archived_through_a_switch_of_the_storage(place: ArchivePlace):
    """Each timeline has its own files; the position continues in the new timeline."""
    archiver = place.archiver()
    ids = place.publish(NOON + 1)
    other = StorageInfo("other", "sqlite", sqlite_configuration=SqliteConfiguration("other"))
    place.platform.log.admin.add_storage(other)
    place.platform.log.admin.switch("orders", "other")
    ids += place.publish(NOON + 2)
    place.live_through(archiver, ONE + GRACE)
    assert place.ids_in(NOON) == dict.fromkeys(ids, 1)
    assert [(row["timeline"], row["offset"]) for row in place.rows()] == [(1, 0), (2, 0)]
    assert place.stored()[0].position == Position(2, 0)
    assert "01/12" in place.flagged()


def test_a_partition_that_came_to_exist_later_blocks_only_hours_since(place: ArchivePlace):
    """A new partition blocks hours only until it has a position, and no hours that had ended before."""
    archiver = place.archiver()
    place.live_through(archiver, ONE + GRACE)
    place.platform.log.admin.grow("orders", 3)
    ids = place.publish(ONE + 1, partition=2)
    place.live_through(archiver, ONE + HOUR_MS + GRACE)
    assert place.flagged()[-1] == "01/13"
    assert place.ids_in(ONE) == dict.fromkeys(ids, 1)
    assert sorted(place.stored()) == [0, 1, 2]


def test_records_that_expired_are_skipped_and_counted(make, caplog):
    """The setting decides whether the archive continues at the oldest record or at the end."""
    for setting, left in (("earliest", 1), ("latest", 0)):
        place = make(on_unavailable=setting, retention_waits=False)
        place.create(options=Options(HOUR_MS))
        place.archiver().stop(place.terms)
        place.publish(NOON + 1, NOON + 2)
        place.clock.advance(2 * HOUR_MS)
        kept = place.publish(NOON + 2 * HOUR_MS)
        place.platform.log.upkeep.purge()
        place.archiver().stop(place.terms)
        assert place.ids() == dict.fromkeys(kept[:left], 1)
        assert place.counts() == Counts(left, left, skipped=3 - left)
        assert f"the archive skips {3 - left} records" in caplog.text
        assert "its records have expired" in caplog.text
        caplog.clear()


def test_records_that_expire_in_the_middle_of_a_shift_are_skipped(make):
    """Records that expire before they are collected are skipped and counted."""
    place = make(retention_waits=False)
    place.create(options=Options(HOUR_MS))
    archiver = place.working()
    place.publish(NOON + 1, NOON + 2)
    place.clock.advance(2 * HOUR_MS)
    kept = place.publish(NOON + 2 * HOUR_MS)
    place.platform.log.upkeep.purge()
    place.step(archiver)
    archiver.stop(place.terms)
    assert place.ids() == dict.fromkeys(kept, 1)
    assert place.counts() == Counts(1, 1, skipped=2)


def test_a_task_that_loses_rows_is_not_believed(place: ArchivePlace):
    """A row count mismatch fails the step, and nothing is decided."""

    class Lossy(InProcess):
        def stage(self, tasks):
            return [msgspec.structs.replace(harvest, rows=harvest.rows + 1) for harvest in super().stage(tasks)]

    place.runner = Lossy()
    archiver = place.working()
    place.publish(NOON + 1)
    with pytest.raises(StrandlineError, match="row count mismatch in partition 0: 2 read, "):
        archiver.stop(place.terms)
    assert place.counts() == Counts()


@pytest.mark.parametrize(("sizes", "groups"), [([5] * 3, [1, 1, 1]), ([5] * 4, [2, 2]), ([3, 3, 3, 9, 1], [3, 2])])
def test_files_are_merged_up_to_the_size_that_is_wanted(sizes, groups):
    """Only adjacent files are merged, and only if there are many."""
    files = [StagedFile(f"{n}", "data", NOON, 0, 1, n, n, 1, size, "") for n, size in enumerate(sizes)]
    packed = packs(files, 10)
    assert [len(group) for group in packed] == groups
    assert [file for group in packed for file in group] == files


def test_an_event_type_that_was_made_anew_is_archived_anew(place: ArchivePlace):
    """A recreated event type gets new file names; earlier files stay."""
    archiver = place.archiver()
    first = place.publish(NOON + 1)
    place.step(archiver)
    archiver.stop(place.terms)
    place.platform.log.delete("orders")
    place.create(partitions=2)
    second = place.publish(NOON + 1)
    archiver = place.archiver()
    place.live_through(archiver, ONE + GRACE)
    assert place.ids_in(NOON) == dict.fromkeys(first + second, 1)
    assert {path.name[:9] for path in place.data_files()} == {"orders-00", "orders-r2"}


def test_an_event_type_that_is_made_anew_meanwhile_is_noticed(place: ArchivePlace):
    """A recreation during a shift is detected."""
    archiver = place.working()
    place.publish(NOON + 1)
    place.step(archiver)
    place.platform.log.delete("orders")
    place.create(partitions=2)
    second = place.publish(NOON + 2)
    place.live_through(archiver, ONE + GRACE)
    assert place.ids_in(NOON) == dict.fromkeys(second, 1)


def test_whoever_is_replaced_lands_nothing(place: ArchivePlace):
    """A replaced archiver decides nothing, writes no flags and publishes no staged files."""
    sleeper = place.working()
    ids = place.publish(NOON + 1)
    sleeper.step(place.terms, everything=True)
    place.clock.advance(HOUR_MS + GRACE)
    heir = place.archiver()
    with pytest.raises(LeaseLost):
        place.step(sleeper)
    sleeper.abort()
    assert place.data_files() == []
    place.step(heir)
    assert place.ids_in(NOON) == dict.fromkeys(ids, 1)
    assert place.flag(NOON)["epoch"] == 2


def test_only_one_decision_is_made_in_an_idle_hour(place: ArchivePlace, monkeypatch):
    """Timer steps without events write nothing."""
    archiver = place.archiver()
    place.live_through(archiver, ONE + GRACE)
    decided = []
    whole = place.ledger.decide
    monkeypatch.setattr(place.ledger, "decide", lambda *args: (decided.append(args), whole(*args)))
    place.live_through(archiver, ONE + 2 * HOUR_MS)
    assert len(decided) == 1
