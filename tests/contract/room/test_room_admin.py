"""What an operator does to the log, in process and over HTTP alike."""

from __future__ import annotations

import pytest

from strandline.errors import Conflict, Invalid, NotFound
from strandline.log import EventType, StorageInfo
from strandline.log.storage.registry import SqliteConfiguration


@pytest.fixture
def other(log, name):
    """A storage of the test's own."""
    storage_id = name.replace(".", "-")
    place = SqliteConfiguration(storage_id)
    log.admin.add_storage(StorageInfo(storage_id, "sqlite", sqlite_configuration=place))
    return storage_id


@pytest.fixture
def two(log, name):
    """An event type of the test's own with two partitions."""
    return log.create(EventType(name, partitions=2)).name


def test_a_switch_moves_an_event_type(log, two, other):
    """What was written before and after is read in order, through cursors that span the border."""
    log.publish(two, [{"n": n} for n in range(10)]).raise_for_failed()
    half = log.partitions(two)
    created = log.admin.switch(two, other)
    assert (created.order, created.storage_id, created.latest_position) == (2, other, None)
    log.publish(two, [{"n": n} for n in range(10, 20)]).raise_for_failed()
    assert sorted(e["n"] for batch in log.read(two) for e in batch.events) == list(range(20))
    rest = log.read(two, start={p.partition: p.newest_available_offset for p in half})
    assert sorted(e["n"] for batch in rest for e in batch.events) == list(range(10, 20))
    old, new = log.timelines(two)
    assert (sum(old.latest_position.values()), old.switched_at is None, new.storage_id) == (8, False, other)
    switch = log.admin.current_switch(two)
    assert (switch.state, switch.kind, switch.storage_id) == ("done", "switch", other)


def test_an_event_type_that_was_never_switched_says_so(log, two, other):
    """None, and NotFound only for a name that is none."""
    assert log.admin.current_switch(two) is None
    with pytest.raises(NotFound):
        log.admin.current_switch("nothing")


def test_a_dry_run_changes_nothing(log, two, other):
    """It has the errors of a switch, and the timelines as they are."""
    assert [timeline.order for timeline in log.admin.check_switch(two, other)] == [1]
    with pytest.raises(Invalid, match="does not exist"):
        log.admin.check_switch(two, "nowhere")
    assert len(log.timelines(two)) == 1


def test_a_switch_to_nowhere_is_refused(log, two, other):
    """The storage must exist, and so must the event type."""
    with pytest.raises(Invalid, match="nowhere"):
        log.admin.switch(two, "nowhere")
    with pytest.raises(NotFound):
        log.admin.switch("nothing", other)
    assert len(log.timelines(two)) == 1


def test_there_is_nothing_to_abort(log, two, other):
    """Conflict when no switch is under way, also after one that is done."""
    with pytest.raises(Conflict, match="under way"):
        log.admin.abort_switch(two)
    log.admin.switch(two, other)
    with pytest.raises(Conflict, match="under way"):
        log.admin.abort_switch(two)


def test_partitions_grow(log, two, other):
    """New partitions are written and read; older timelines count as empty for them."""
    log.publish(two, [{"n": 0}]).raise_for_failed()
    log.admin.switch(two, other)
    log.admin.grow(two, 5)
    log.publish(two, [{"n": n} for n in range(1, 51)]).raise_for_failed()
    infos = log.partitions(two)
    assert [info.partition for info in infos] == ["0", "1", "2", "3", "4"]
    assert infos[4].newest_available_offset.startswith("001-0002-")
    assert sorted(e["n"] for batch in log.read(two) for e in batch.events) == list(range(51))
    assert log.get(two).partitions == 5


def test_partitions_never_shrink(log, two, other):
    """Fewer are refused; as many as there are is fine."""
    with pytest.raises(Invalid, match="shrink"):
        log.admin.grow(two, 1)
    log.admin.grow(two, 2)
    with pytest.raises(Invalid, match="too many"):
        log.admin.grow(two, 100_000)
    assert log.get(two).partitions == 2


def test_new_event_types_go_to_the_default_storage(log, two, other):
    """From the moment another one is chosen."""
    assert log.admin.set_default_storage(other).default
    log.create(EventType(f"{two}.more"))
    assert log.timelines(f"{two}.more")[0].storage_id == other
    log.admin.set_default_storage("default")
    with pytest.raises(NotFound):
        log.admin.set_default_storage("nowhere")


def test_only_unused_storages_can_be_removed(log, two, other):
    """The default and one in use stay."""
    with pytest.raises((Conflict, Invalid)):
        log.admin.remove_storage("default")
    log.admin.switch(two, other)
    with pytest.raises((Conflict, Invalid)):
        log.admin.remove_storage(other)
    third = f"{other}-3"
    log.admin.add_storage(StorageInfo(third, "sqlite", sqlite_configuration=SqliteConfiguration(third)))
    log.admin.remove_storage(third)
    found = {storage.id for storage in log.storages()}
    assert {"default", other} <= found
    assert third not in found


@pytest.mark.parametrize(
    "wrong",
    [
        StorageInfo("x", "kafka"),
        StorageInfo("x", "sqlite"),
        StorageInfo("x", "sqlite", sqlite_configuration=SqliteConfiguration("../outside")),
    ],
)
def test_a_storage_needs_a_place(log, wrong):
    """Invalid says what is missing."""
    with pytest.raises(Invalid):
        log.admin.add_storage(wrong)


def test_a_storage_is_added_once(log, other):
    """Conflict for the same id again."""
    again = StorageInfo(other, "sqlite", sqlite_configuration=SqliteConfiguration("elsewhere"))
    with pytest.raises(Conflict, match="exists already"):
        log.admin.add_storage(again)
