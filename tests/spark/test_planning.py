"""The planning of reads, on an embedded platform and without Spark."""

import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from strandline import EventType
from strandline.errors import InvalidCursor, NotFound
from strandline.log import StorageInfo
from strandline.log.ranges import read_range
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration
from strandline.pipeline import positions
from strandline.pipeline.options import Home, ReadOptions
from strandline.pipeline.planning import Planner


@pytest.fixture
def log(platform):
    second = StorageInfo("second", "sqlite", sqlite_configuration=SqliteConfiguration("second"))
    platform.log.admin.add_storage(second)
    platform.log.create(EventType("orders", partitions=2))
    return platform.log


@pytest.fixture
def planner(platform, log):
    return planner_of(platform)


def planner_of(platform, **options):
    return Planner(platform, ReadOptions(Home(platform.data), options.pop("event_types", ("orders",)), **options))


def publish(log, count, first=0):
    log.publish("orders", [{"n": first + n} for n in range(count)]).raise_for_failed()


def text(places) -> str:
    return json.dumps(positions.dump(places))


def read(planner, start, end) -> list[int]:
    found = [batch for part in planner.ranges(start, end) for batch in read_range(part)]
    return sorted(event["n"] for batch in found for event in batch.events)


def purge_all(log):
    """Make all stored records expire."""
    for timeline in log.timelines("orders"):
        log._storages.get(timeline.storage_id).purge(timeline.topic, 1 << 60)


def test_batches_follow_each_other_within_their_limit(log, planner):
    """Batches have at most `limit` records and contain every record once. At the end the offset is stable."""
    publish(log, 25)
    place, found = planner.located("BEGIN"), []
    for _ in range(3):
        after = planner.latest(place, limit=10)
        found.append(read(planner, place, after))
        place = after
    assert sorted(number for batch in found for number in batch) == [*range(25)]
    assert [len(batch) for batch in found] == [10, 10, 5]
    assert text(planner.latest(place, limit=10)) == text(place)


def test_a_switch_changes_no_text_and_loses_nothing(log, planner):
    """A switch does not change the text of an offset, also through empty timelines. No record is lost."""
    publish(log, 10)
    start = planner.located("BEGIN")
    place = planner.latest(start, None)
    for storage in ("second", "default", "second"):
        log.admin.switch("orders", storage)
        assert text(planner.latest(place, None)) == text(place)
    publish(log, 10, first=10)
    after = planner.latest(place, None)
    assert read(planner, place, after) == [*range(10, 20)]
    assert read(planner, start, after) == [*range(20)]
    assert {len(part.pieces) for part in planner.ranges(start, after)} == {2}


def test_new_partitions_are_read_from_their_start(log, planner):
    """A query that started at the end reads new partitions from their first record."""
    publish(log, 10)
    place = planner.located("END")
    log.admin.grow("orders", 4)
    publish(log, 20, first=10)
    after = planner.latest(place, None)
    assert after["orders"].cursors.keys() == {"0", "1", "2", "3"}
    assert read(planner, place, after) == [*range(10, 30)]


def test_expired_records_end_a_query_or_are_counted(log, platform):
    """Expired records are an error or are skipped, by option. The offset counts skipped records once."""
    publish(log, 10)
    start = planner_of(platform).located("BEGIN")
    purge_all(log)
    publish(log, 4, first=10)
    with pytest.raises(InvalidCursor, match="its records have expired; available offsets are"):
        planner_of(platform).latest(start, None)
    earliest = planner_of(platform, on_unavailable="earliest")
    after = earliest.latest(start, None)
    assert read(earliest, start, after) == [10, 11, 12, 13]
    assert sum(after["orders"].skipped.values()) == 10
    assert text(earliest.latest(after, None)) == text(after)
    latest = planner_of(platform, on_unavailable="latest")
    after = latest.latest(start, None)
    assert read(latest, start, after) == []
    assert sum(after["orders"].skipped.values()) == 14


def test_what_is_left_out_is_reported_once(log, platform, caplog):
    """Skipped records are logged once for each partition, also if Spark plans the batch again."""
    publish(log, 10)
    planner = planner_of(platform, on_unavailable="earliest")
    start = planner.located("BEGIN")
    purge_all(log)
    for _ in range(3):
        planner.ranges(start, planner.latest(start, None))
    assert (
        len([line for line in caplog.messages if "the query skips" in line and "its records have expired" in line])
        == 2
    )


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_records_that_expire_between_plan_and_read(log, platform, policy):
    """A task fails on records that expired after the planning, or skips them, by option."""
    publish(log, 10)
    planner = planner_of(platform, on_unavailable=policy)
    part, _ = planner.ranges(planner.located("BEGIN"), planner.located("END"))
    purge_all(log)
    if policy == "earliest":
        assert [*read_range(part)] == []
        return
    with pytest.raises(InvalidCursor, match="expired before it was read"):
        [*read_range(part)]


def test_an_event_type_made_anew_is_another_one(log, platform):
    """Offsets of a deleted event type are not valid for a new one with the same name."""
    publish(log, 10)
    begin, place = (planner_of(platform).located(text) for text in ("BEGIN", "END"))
    log.delete("orders")
    log.create(EventType("orders", partitions=2))
    publish(log, 20, first=100)
    with pytest.raises(InvalidCursor, match="deleted and created again"):
        planner_of(platform).latest(place, None)
    planner = planner_of(platform, on_unavailable="earliest")
    after = planner.latest(place, None)
    assert read(planner, place, after) == [*range(100, 120)]
    assert read(planner, begin, place) == []


def test_a_deleted_event_type_is_told(log, planner):
    """A deleted event type is NotFound."""
    place = planner.located("END")
    log.delete("orders")
    with pytest.raises(NotFound, match="'orders' does not exist"):
        planner.latest(place, None)


def test_a_run_for_what_is_there_now_ends_at_its_target(log, planner):
    """An available-now run ends at its target. The next run reads the later records and partitions."""
    publish(log, 10)
    place, target = planner.located("BEGIN"), planner.located("END")
    log.admin.switch("orders", "second")
    log.admin.grow("orders", 3)
    publish(log, 30, first=10)
    after = planner.latest(place, None, target)
    assert read(planner, place, after) == [*range(10)]
    assert text(planner.latest(after, None, target)) == text(after)
    assert read(planner, after, planner.latest(after, None)) == [*range(10, 40)]


def test_a_first_batch_is_repeated_from_where_it_began(log, planner):
    """A first batch from END that is repeated after a crash starts at the first END, not at the current one."""
    publish(log, 10)
    start = planner.located("END")
    publish(log, 5, first=10)
    end = positions.with_beginning(start, planner.latest(start, None))
    publish(log, 5, first=15)
    restarted = planner.located("END")
    assert read(planner, restarted, end) == [*range(10, 15)]
    assert read(planner, end, planner.latest(end, None)) == [*range(15, 20)]


def test_event_types_that_are_no_longer_asked_for_keep_their_place(log, platform):
    """Event types that are removed from a query keep their offset. New ones are read from their start."""
    log.create(EventType("returns"))
    publish(log, 10)
    place = planner_of(platform).located("END")
    other = planner_of(platform, event_types=("returns",))
    log.publish("returns", [{"n": 1}]).raise_for_failed()
    after = other.latest(place, None)
    assert after["orders"] == place["orders"]
    assert read(other, place, after) == [1]


def test_a_place_can_be_given_as_a_start(log, planner, platform):
    """An offset of a query's progress is a valid start. It includes the identity of its event type."""
    publish(log, 10)
    place = planner.latest(planner.located("BEGIN"), limit=4)
    assert planner.located(text(place)) == place
    other = {"orders": msgspec.structs.replace(place["orders"], id="another")}
    with pytest.raises(InvalidCursor, match="created again"):
        planner.located(text(other))


def test_cursors_and_times_can_be_mixed_by_partition(log, planner):
    """Cursors and times can be mixed; each partition is resolved separately."""
    publish(log, 10)
    place = planner.located('{"orders": {"0": "END", "1": "2020-01-01T00:00:00Z"}}')
    assert place["orders"].cursors == {"0": "001-0001-000000000000000004", "1": "001-0001--1"}


def test_an_unavailable_start_is_treated_as_the_option_says(log, platform):
    """A cursor before the oldest record fails, or starts at the oldest record, by option."""
    publish(log, 10)
    purge_all(log)
    given = '{"orders": {"0": "001-0001--1", "1": "001-0001--1"}}'
    with pytest.raises(InvalidCursor, match="not available"):
        planner_of(platform).located(given)
    found = planner_of(platform, on_unavailable="earliest").located(given)
    assert found == planner_of(platform).located("END")


def test_a_reader_is_told_where_the_ends_are(log, planner):
    """`newest` is the end of all partitions, used for the lag of a query."""
    publish(log, 10)
    planner.latest(planner.located("BEGIN"), limit=2)
    assert planner.newest == planner.located("END")


def test_a_limit_is_shared_by_all_event_types(log, platform):
    """All event types share the limit of a batch, and each of them gets a part."""
    log.create(EventType("returns"))
    publish(log, 100)
    log.publish("returns", [{"n": n} for n in range(3)]).raise_for_failed()
    planner = planner_of(platform, event_types=("orders", "returns"))
    start = planner.located("BEGIN")
    parts = planner.ranges(start, planner.latest(start, limit=11))
    assert {(part.event_type, part.partition): part.size for part in parts} == {
        ("orders", 0): 4,
        ("orders", 1): 4,
        ("returns", 0): 3,
    }


def test_a_broker_that_is_away_for_a_while_is_waited_for(log, platform, kafka):
    """Planning and tasks wait while a broker restarts."""
    configuration = KafkaConfiguration(kafka.bootstrap_servers)
    log.admin.add_storage(StorageInfo("kafka", "kafka", kafka_configuration=configuration))
    log.admin.switch("orders", "kafka")
    publish(log, 10)
    planner = planner_of(platform)
    start, end = planner.located("BEGIN"), planner.located("END")
    parts = planner.ranges(start, end)
    with ThreadPoolExecutor(2) as threads:
        kafka.kill()
        try:
            latest = threads.submit(planner.latest, start, None)
            found = threads.submit(
                lambda: [event["n"] for part in parts for b in read_range(part) for event in b.events]
            )
            assert not latest.done()
        finally:
            kafka.bring_back()
        assert latest.result(60) == end
        assert sorted(found.result(60)) == [*range(10)]


def test_settings_of_the_platform_travel_with_the_range(log, platform):
    """A range contains the platform's settings, with which a worker opens storages."""
    publish(log, 2)
    planner = planner_of(platform)
    part = planner.ranges(planner.located("BEGIN"), planner.located("END"))[0]
    assert part.settings == platform.settings.log
    assert part.data == str(platform.data.resolve())
