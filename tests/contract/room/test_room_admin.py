"""The administration of the log, in process and over HTTP."""

from __future__ import annotations

import time

import pytest

from strandline.clock import parse_rfc3339
from strandline.errors import Conflict, Invalid, NotFound
from strandline.log import EventType, StorageInfo
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration


@pytest.fixture
def other(log, name):
    """A storage that only this test uses."""
    storage_id = name.replace(".", "-")
    place = SqliteConfiguration(storage_id)
    log.admin.add_storage(StorageInfo(storage_id, "sqlite", sqlite_configuration=place))
    return storage_id


@pytest.fixture
def two(log, name):
    """An event type with two partitions that only this test uses."""
    return log.create(EventType(name, partitions=2)).name


def test_a_switch_moves_an_event_type(log, two, other):
    """Events from before and after a switch are read in order, also from cursors in the old timeline."""
    log.publish(two, [{"n": n} for n in range(10)]).raise_for_failed()
    half = log.partitions(two)
    created = log.admin.switch(two, other)
    assert (created.order, created.storage_id, created.latest_position) == (2, other, None)
    log.publish(two, [{"n": n} for n in range(10, 20)]).raise_for_failed()
    assert sorted(e["n"] for batch in log.read(two) for e in batch.events) == list(range(20))
    rest = log.read(two, start={p.partition: p.newest_available_offset for p in half})
    assert sorted(e["n"] for batch in rest for e in batch.events) == list(range(10, 20))
    old, new = log.timelines(two)
    assert (sum(old.latest_position.values()), new.latest_position, new.storage_id) == (8, None, other)
    # Each one became active when it was created, and the old one was closed when the new one became active.
    assert (old.switched_at, new.switched_at) == (old.created_at, new.created_at)
    assert (old.closed_at, new.closed_at) == (new.switched_at, None)
    switch = log.admin.current_switch(two)
    assert (switch.state, switch.kind, switch.storage_id) == ("done", "switch", other)


def test_an_event_type_that_was_never_switched_says_so(log, two, other):
    """`current_switch` is None without a switch, and NotFound only for an unknown name."""
    assert log.admin.current_switch(two) is None
    with pytest.raises(NotFound):
        log.admin.current_switch("nothing")


def test_a_dry_run_changes_nothing(log, two, other):
    """A dry run raises the errors of a switch and returns the unchanged timelines."""
    assert [timeline.order for timeline in log.admin.check_switch(two, other)] == [1]
    with pytest.raises(Invalid, match="does not exist"):
        log.admin.check_switch(two, "nowhere")
    assert len(log.timelines(two)) == 1


def test_a_switch_to_nowhere_is_refused(log, two, other):
    """The storage and the event type must exist."""
    with pytest.raises(Invalid, match="nowhere"):
        log.admin.switch(two, "nowhere")
    with pytest.raises(NotFound):
        log.admin.switch("nothing", other)
    assert len(log.timelines(two)) == 1


def test_there_is_nothing_to_abort(log, two, other):
    """An abort without a switch under way is a Conflict, also after a finished switch."""
    with pytest.raises(Conflict, match="under way"):
        log.admin.abort_switch(two)
    log.admin.switch(two, other)
    with pytest.raises(Conflict, match="under way"):
        log.admin.abort_switch(two)


def test_partitions_grow(log, two, other):
    """New partitions are written and read; they are empty in older timelines."""
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
    """Fewer partitions are refused; the same number is accepted."""
    with pytest.raises(Invalid, match="shrink"):
        log.admin.grow(two, 1)
    log.admin.grow(two, 2)
    with pytest.raises(Invalid, match="too many"):
        log.admin.grow(two, 100_000)
    assert log.get(two).partitions == 2


def test_new_event_types_go_to_the_default_storage(log, two, other):
    """A new default storage applies to event types that are created after the change."""
    assert log.admin.set_default_storage(other).default
    log.create(EventType(f"{two}.more"))
    assert log.timelines(f"{two}.more")[0].storage_id == other
    log.admin.set_default_storage("default")
    with pytest.raises(NotFound):
        log.admin.set_default_storage("nowhere")


def test_only_unused_storages_can_be_removed(log, two, other):
    """The default storage and a storage in use cannot be removed."""
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
        StorageInfo("x", "sqlite", sqlite_configuration=SqliteConfiguration("x\0y")),
        StorageInfo("x", "sqlite", sqlite_configuration=SqliteConfiguration("d" * 300)),
        StorageInfo("x", "kafka", kafka_configuration=KafkaConfiguration("broker:99999")),
    ],
)
def test_a_storage_needs_a_place(log, wrong):
    """A storage without a valid configuration is Invalid."""
    with pytest.raises(Invalid):
        log.admin.add_storage(wrong)


def test_a_storage_says_when_it_was_added(log, name):
    """The time is the node's, whatever the request says."""
    storage_id = f"{name}-dated".replace(".", "-")
    place = SqliteConfiguration(storage_id)
    added = log.admin.add_storage(
        StorageInfo(storage_id, "sqlite", created_at="long ago", sqlite_configuration=place)
    )
    assert abs(time.time() * 1000 - parse_rfc3339(str(added.created_at))) < 60_000
    assert added in log.storages()


def test_a_storage_is_added_once(log, other):
    """A second storage of the same id is a Conflict."""
    again = StorageInfo(other, "sqlite", sqlite_configuration=SqliteConfiguration("elsewhere"))
    with pytest.raises(Conflict, match="exists already"):
        log.admin.add_storage(again)
