"""Flags in the files: repaired, raised by late events, and never lowered."""

from __future__ import annotations

import msgspec
import pytest
from archive_place import GRACE, MINUTE, NOON, ArchivePlace, reasons

from strandline.archive import flags
from strandline.archive.archiver import Archiver
from strandline.archive.files.local import LocalFiles
from strandline.archive.model import HOUR_MS, Counts, Hour, Period
from strandline.errors import Conflict, Unavailable

ONE = NOON + HOUR_MS
TWO = ONE + HOUR_MS


@pytest.fixture
def archiver(place: ArchivePlace) -> Archiver:
    """An archiver with a flagged hour at noon, which has one event."""
    archiver = place.working()
    place.publish(NOON + 1)
    place.live_through(archiver, ONE + GRACE)
    assert place.flagged()[-1] == "01/12"
    return archiver


# -- the writer of flags


def hour(revision: int, **more: object) -> Hour:
    return msgspec.structs.replace(Hour("orders", NOON, revision), flagged_ms=ONE, **more)


def test_a_flag_is_never_replaced_by_a_lower_or_the_same_revision(place: ArchivePlace):
    """A late write of an older or equal revision has no effect."""
    layout = place.layout("orders")
    flags.write_hour(place.files, layout, hour(2, epoch=7), [])
    for older in (hour(1, epoch=9), hour(2, epoch=9)):
        flags.write_hour(place.files, layout, older, [])
        assert place.flag(NOON)["epoch"] == 7
    flags.write_hour(place.files, layout, hour(3, epoch=1), [])
    assert [place.flag(NOON, beside_files=beside)["revision"] for beside in (True, False)] == [3, 3]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"revision":"x"}'])
def test_what_is_no_flag_is_replaced(place: ArchivePlace, content):
    """An empty or invalid file does not count as a flag."""
    path = place.root / place.layout("orders").flags(NOON)[1]
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert flags.read(place.files, str(path.relative_to(place.root))) is None
    flags.write_hour(place.files, place.layout("orders"), hour(1), [])
    assert place.flag(NOON)["revision"] == 1


class Busy(LocalFiles):
    """Another process always replaces the flag first."""

    def replace(self, path: str, *_: object) -> None:
        raise Conflict(path)


def test_a_writer_that_never_gets_through_says_so(place: ArchivePlace):
    """The writer is Unavailable after some attempts; it does not retry forever."""
    with pytest.raises(Unavailable, match="other processes keep replacing"):
        flags.write_period(Busy(str(place.root)), "d/_READY", Period("d", NOON, 1, 0, {}))


# -- repair


@pytest.mark.parametrize("missing", [0, 1])
def test_only_the_missing_flag_is_written(place: ArchivePlace, archiver, missing):
    """Each of the two flags is checked on its own; an existing flag is not written again."""
    lost, kept = [place.root / path for path in place.layout("orders").flags(NOON)][:: -1 if missing else 1]
    before, content = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    place.live_through(archiver, TWO + GRACE)
    assert lost.read_bytes() == content
    assert kept.stat().st_mtime_ns == before


def test_a_start_repairs_flags_as_well(place: ArchivePlace, archiver):
    """A start writes missing flags from the ledger, with their original epoch."""
    for path in place.layout("orders").flags(NOON):
        (place.root / path).unlink()
    place.archiver()
    assert place.flag(NOON)["epoch"] == 1
    assert "01/12" in place.flagged()


def test_a_flag_with_its_directory_is_made_again(place: ArchivePlace, archiver):
    """A start recreates the directory of an hour without data."""
    eleven = place.root / "2024-05-01/11"
    for path in sorted(eleven.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    place.archiver()
    assert place.flag(NOON - HOUR_MS)["files"] == []


# -- late events


def test_late_events_are_appended_and_the_flag_is_raised(place: ArchivePlace, archiver):
    """Late events add a `late-` file, the `_LATE` marker and a revision to both flags; old files are unchanged."""
    before = {path: path.stat().st_mtime_ns for path in place.data_files()}
    late = place.publish(NOON + 2)
    now = place.publish(ONE + 2)
    place.live_through(archiver, TWO + GRACE)
    assert place.flag(NOON)["revision"] == 2
    assert [file["name"][:11] for file in place.flag(NOON)["files"]] == ["late-orders", "orders-0000"]
    assert place.ids_in(NOON)[late[0]] == 1
    assert place.ids_in(ONE) == dict.fromkeys(now, 1)
    assert (place.root / "2024-05-01/12/orders/_LATE").exists()
    assert not (place.root / "2024-05-01/13/orders/_LATE").exists()
    assert before.items() <= {path: path.stat().st_mtime_ns for path in place.data_files()}.items()
    assert place.counts() == Counts(3, 2, 1)
    assert place.flagged()[-1] == "01/13"


def test_every_batch_of_late_events_raises_the_revision(place: ArchivePlace, archiver):
    """The manifest lists all files so far."""
    for revision in (2, 3, 4):
        place.publish(NOON + revision)
        place.live_through(archiver, ONE + (revision - 1) * HOUR_MS + GRACE)
        assert (place.flag(NOON)["revision"], place.flag(NOON)["rows"]) == (revision, revision)


def test_late_events_can_be_quarantined(make):
    """Quarantined late events are not in the hour, and its flag is unchanged."""
    place = make(late="quarantine")
    place.create()
    archiver = place.working()
    place.live_through(archiver, ONE + GRACE)
    late = place.publish(NOON + 2, NOON + 3 - HOUR_MS)
    place.live_through(archiver, TWO + GRACE)
    assert (place.flag(NOON)["revision"], place.flag(NOON)["rows"]) == (1, 0)
    assert reasons(place.quarantined()) == {"late": 2}
    assert place.ids() == {}
    assert place.counts() == Counts(2, 0, 0, 2)
    values = {msgspec.json.decode(row["value"])["metadata"]["eid"] for row in place.quarantined()}
    assert values == {*late}


def test_late_events_can_be_dropped(make):
    """Dropped late events are counted."""
    place = make(late="drop")
    place.create()
    archiver = place.working()
    place.live_through(archiver, ONE + GRACE)
    place.publish(NOON + 2)
    kept = place.publish(ONE + 2)
    place.live_through(archiver, TWO + GRACE)
    assert place.flag(NOON)["revision"] == 1
    assert place.ids() == dict.fromkeys(kept, 1)
    assert place.counts() == Counts(2, 1, 0, 0, 1)
    assert place.staged() == []


def test_events_of_before_the_archive_began_are_no_late_ones(place: ArchivePlace, archiver):
    """Their hour has no flag yet and gets one."""
    old = place.publish(NOON - 50 * HOUR_MS)
    place.live_through(archiver, TWO + GRACE)
    assert place.ids()[old[0]] == 1
    assert place.flag(NOON - 50 * HOUR_MS)["revision"] == 1
    assert place.counts() == Counts(2, 2)


def test_an_event_that_is_late_when_it_is_published_was_not_when_it_was_collected(make):
    """The flag at the time of the decision decides whether an event is late."""
    place = make(min_records=1)
    place.create()
    archiver = place.working()
    place.step(archiver, ONE)
    place.step(archiver, ONE + GRACE)
    late = place.publish(NOON + 5)
    place.step(archiver, ONE + GRACE + MINUTE)
    assert len(place.staged()) == 1
    place.live_through(archiver, TWO + GRACE)
    assert place.flag(NOON)["revision"] == 2
    assert place.ids_in(NOON) == dict.fromkeys(late, 1)


# -- the other rule


def test_the_seeds_rule_alone_needs_no_barrier(make):
    """By the rule `timestamps` an hour is ready when all timestamps are past its start."""
    place = make(ready_rule="timestamps")
    place.create(partitions=2)
    archiver = place.working()
    place.publish(NOON + 1)
    place.publish(NOON + 2, partition=1)
    place.live_through(archiver, ONE + GRACE)
    assert place.flagged()[-1] == "01/12"
    assert place.flag(NOON)["barrier"] is None


@pytest.mark.parametrize(("rule", "ready"), [("timestamps", False), ("barrier", True)])
def test_a_partition_with_nothing_but_old_events_blocks_only_by_the_seeds_rule(make, rule, ready):
    """By the rule `timestamps` a partition with only old events blocks indefinitely."""
    place = make(ready_rule=rule)
    place.create()
    archiver = place.working()
    for n in range(3):
        place.publish(NOON - 5 * HOUR_MS)
        place.live_through(archiver, ONE + n * HOUR_MS + GRACE)
    assert ("01/14" in place.flagged()) is ready


@pytest.mark.parametrize(("stamp", "ready"), [(0, False), (1, True)])
def test_the_comparison_with_the_start_of_the_hour_is_strict(make, stamp, ready):
    """By the rule `timestamps` a newest event exactly at the start of the hour does not make it ready."""
    place = make(ready_rule="timestamps")
    place.create()
    archiver = place.working()
    place.publish(NOON + stamp)
    place.live_through(archiver, ONE + GRACE)
    assert ("01/12" in place.flagged()) is ready


def test_what_comes_after_the_barrier_is_late(place: ArchivePlace):
    """The last record before the barrier is in the first revision; the next record is late."""
    archiver = place.working()
    place.live_through(archiver, ONE + GRACE - 1)
    ids = place.publish(ONE - 5)
    place.step(archiver, ONE + GRACE)
    assert place.flag(NOON)["barrier"]["cursors"]["0"] == "001-0001-000000000000000000"
    assert place.ids_in(NOON) == dict.fromkeys(ids, 1)
    after = place.publish(ONE - 4)
    place.live_through(archiver, TWO + GRACE)
    assert place.flag(NOON)["revision"] == 2
    assert place.ids_in(NOON) == dict.fromkeys(ids + after, 1)
