"""A relay publishes every event of the source once to the target, when it is due."""

from __future__ import annotations

import threading

import msgspec
import pytest
from relay_place import SCHEDULE, origins, publish, relay, relayed

from services import until
from strandline import EventType
from strandline.clock import to_rfc3339
from strandline.errors import Conflict, Gap, Invalid, NotFound, OutcomeUnknown
from strandline.log import Options, Schema
from strandline.log.fenced_publish import FencedLog
from strandline.pipeline.relay import JOB
from strandline.schedule import Message, Schedule
from strandline.schedule.model import ListQuery


def letters(node):
    return node.schedules.relay_letters(SCHEDULE)


def test_every_event_arrives_once_with_its_origin(node):
    """A second run has nothing to do. The origin names event type, id, partition and cursor of the source."""
    publish(node, *range(50))
    relay(node).once()
    relay(node).once()
    assert sorted(relayed(node)) == [*range(50)]
    own = node.log.types.entry("orders").id
    expected = {
        f"orders/{own}/{batch.partition}/001-{batch.timeline:04x}-{offset:018d}"
        for batch in node.log.read("orders")
        for offset in batch.records["offset"].to_pylist()
    }
    assert len(origins(node)) == 50
    assert {*origins(node)} == expected
    publish(node, 50)
    relay(node).once()
    assert sorted(relayed(node)) == [*range(51)]


def test_nothing_is_early(node):
    """What is not due waits in the schedule. The target's records are not older than their due time."""
    now_ms = node.clock.now_ms()
    soon = now_ms + 1_500
    publish(node, {"n": 1, "at": soon}, {"n": 2, "at": to_rfc3339(now_ms)}, {"n": 3, "at": now_ms + 3_600_000})
    told = []
    relay(node, due_field="at").once(told.append)
    if node.clock.now_ms() < soon:
        assert relayed(node) == [2]
    assert (told[-1].rows, told[-1].details["dead_letters"], sum(told[-1].lag.values())) == (3, 0, 0)

    def both() -> bool:
        relay(node, due_field="at").once()
        return len(relayed(node)) == 2

    until(both, "the second event")
    for batch in node.log.read("later"):
        for event, published_ms in zip(batch.events, batch.records["timestamp"].to_pylist(), strict=True):
            assert event["n"] != 1 or published_ms >= soon


def test_a_delay_of_years(node):
    """A schedule that the relay makes accepts it. One for shorter delays would refuse every event."""
    years = 3 * 365 * 86_400_000
    publish(node, 1)
    told = []
    relay(node, delay_ms=years).once(told.append)
    assert (told[-1].details["waiting"], letters(node)) == (1, [])
    node.schedules.create(Schedule("short", max_future_ms=60_000))
    with pytest.raises(Invalid, match="accepts messages at most 60000 ms ahead"):
        relay(node, schedule="short", delay_ms=60_001)


def test_order_is_by_due_time_within_a_partition(node):
    """Not by the order of the source; events of one moment are in the order of the source."""
    node.log.create(EventType("single", partitions=1))
    now_ms = node.clock.now_ms()
    times = [5, 3, 3, 9, 1, 1, 7]
    node.log.publish(
        "single", [{"n": n, "at": now_ms - at * 1000} for n, at in enumerate(times)]
    ).raise_for_failed()
    node.log.create(EventType("ordered", partitions=1))
    relay(node, source="single", target="ordered", due_field="at").once()
    found = [event["n"] for batch in node.log.read("ordered") for event in batch.events]
    assert found == [3, 6, 0, 1, 2, 4, 5]


def test_a_relay_that_runs_delays_events(node):
    """Filling and emptying go on side by side, and progress is stored for other processes."""
    stop, told = threading.Event(), []
    process = relay(node, delay_ms=300)
    thread = threading.Thread(target=process.run, args=(stop, told.append))
    thread.start()
    try:
        for first in range(0, 30, 10):
            publish(node, *range(first, first + 10))
        until(lambda: len(relayed(node)) == 30, "all events")
        until(lambda: told[-1].details["published"] == 30, "the progress")
        shown = until(
            lambda: [one for process in JOB.status(node) for one in process.progress if one.rows == 30],
            "the status",
        )
        assert shown[0].event_type == "orders"
        assert shown[0].details.keys() == JOB.details.keys()
    finally:
        stop.set()
        thread.join()
    assert sorted(relayed(node)) == [*range(30)]
    assert JOB.status(node) == []
    published = {event["n"]: at for batch in node.log.read("orders") for event, at in records(batch)}
    for batch in node.log.read("later"):
        for event, at in records(batch):
            assert at >= published[event["n"]] + 300


def records(batch):
    return zip(batch.events, batch.records["timestamp"].to_pylist(), strict=True)


def test_bad_records_become_dead_letters(node):
    """With cursor, reason and value; the others are relayed."""
    year = 366 * 86_400_000
    publish(node, {"n": 1, "at": 5}, {"n": 2}, {"n": 3, "at": "noon"}, {"n": 4, "at": node.clock.now_ms() + year})
    told = []
    relay(node, due_field="at").once(told.append)
    assert relayed(node) == [1]
    found = {one.value: one.reason for one in letters(node)}
    assert len(found) == 3
    assert "'at' is missing" in found[b'{"n":2}']
    assert "not a time" in found[b'{"n":3,"at":"noon"}']
    assert any("too_far" in reason for reason in found.values())
    assert told[-1].details["dead_letters"] == 3
    places = {
        (int(b.partition), b.timeline, o) for b in node.log.read("orders") for o in b.records["offset"].to_pylist()
    }
    assert all((one.partition, *one.cursor) in places for one in letters(node))


def test_events_that_the_target_refuses_become_dead_letters(node):
    node.log.create(EventType("strict", schema=Schema.json({"required": ["ok"]})))
    publish(node, {"n": 1, "ok": 1}, {"n": 2}, {"n": 3, "ok": 1})
    told = []
    relay(node, target="strict").once(told.append)
    assert sorted(event["n"] for batch in node.log.read("strict") for event in batch.events) == [1, 3]
    (one,) = letters(node)
    assert "the target refuses the event at validating" in one.reason
    assert told[-1].details == {"published": 2, "waiting": 0, "dead_letters": 1}
    relay(node, target="strict").once()
    assert len(letters(node)) == 1


def test_a_message_of_another_producer_does_not_stop_the_relay(node):
    """Nobody should create one in the schedule of a relay. It is published once, or becomes a dead letter."""
    publish(node, 1)
    relay(node).once()
    schedule = node.schedule(SCHEDULE)
    bodies = {"event": {"n": 2}, "list": [1], "a/b/c": b"\xff"}
    assert all(
        one.status == "ok" for one in schedule.create([Message(body, id=name) for name, body in bodies.items()])
    )
    publish(node, 3)
    relay(node).once()
    assert sorted(relayed(node)) == [1, 2, 3]
    assert [one.id for one in letters(node)] == ["a/b/c", "list"]
    assert all(
        one.reason.startswith("another producer has created the message: the target") for one in letters(node)
    )
    assert [*schedule.list(ListQuery())] == [], "a message that stays is published again when its lease ends"


def test_an_event_whose_fault_names_a_zero_byte_stops_nothing(node):
    """PostgreSQL stores no such text."""
    strict = Schema.json({"properties": {"n": {}}, "additionalProperties": False})
    node.log.create(EventType("strict", schema=strict))
    publish(node, {"n": 1, "zero\0byte": 1}, {"n": 2})
    relay(node, target="strict").once()
    assert [event["n"] for batch in node.log.read("strict") for event in batch.events] == [2]
    (one,) = letters(node)
    assert "'zero\ufffdbyte' was unexpected" in one.reason


def test_business_events_keep_their_identity(node):
    """Metadata that the platform adds is made anew for the target."""
    for name in ("bought", "bought-later"):
        node.log.create(EventType(name, category="business"))
    eid = "105a76d8-db49-4144-ace7-e683e8f4ba46"
    event = {"n": 1, "metadata": {"eid": eid, "occurred_at": "2024-05-01T12:00:00Z"}}
    node.log.publish("bought", [event]).raise_for_failed()
    relay(node, source="bought", target="bought-later").once()
    (found,) = [event for batch in node.log.read("bought-later") for event in batch.events]
    assert (found["metadata"]["eid"], found["metadata"]["event_type"]) == (eid, "bought-later")


def test_an_unknown_outcome_is_looked_up(node, monkeypatch):
    """Once the events are stored before the error, once they are not. None is lost or published twice."""
    real = FencedLog.publish
    outcomes = iter([True, False])

    def publishing(self, *arguments, **named):
        stored = next(outcomes, None)
        if stored is not False:
            report = real(self, *arguments, **named)
        if stored is not None:
            raise OutcomeUnknown("no answer")
        return report

    monkeypatch.setattr(FencedLog, "publish", publishing)
    publish(node, *range(5))
    relay(node).once()
    publish(node, 5)
    outcomes = iter([False])
    relay(node).once()
    assert sorted(relayed(node)) == [*range(6)]


def test_a_relay_goes_on_while_both_event_types_change_their_storage(node):
    for number, storage in enumerate(["second", "first", "second"]):
        publish(node, number)
        relay(node).once()
        node.log.admin.switch("orders", storage)
        node.log.admin.switch("later", storage)
    publish(node, 3)
    relay(node).once()
    assert sorted(relayed(node)) == [0, 1, 2, 3]


def test_new_partitions_of_the_source_are_read(node):
    publish(node, 1)
    relay(node).once()
    node.log.admin.grow("orders", 4)
    publish(node, *range(2, 12))
    relay(node).once()
    assert sorted(relayed(node)) == [*range(1, 12)]


def test_a_schedule_belongs_to_one_relay(node):
    relay(node).once()
    node.log.create(EventType("other"))
    with pytest.raises(Conflict, match="has a relay from 'orders' to 'later'"):
        relay(node, target="other")


def test_what_a_relay_needs(node):
    with pytest.raises(NotFound):
        relay(node, source="missing")
    with pytest.raises(Invalid, match="--relay-target"):
        relay(node, target="")
    node.journals.create("journal")
    with pytest.raises(Conflict, match="holds the actions of journals"):
        relay(node, source="journal")
    node.schedules.create(Schedule("limited", max_attempts=3))
    with pytest.raises(Conflict, match="max_attempts"):
        relay(node, schedule="limited")


def test_a_schedule_of_a_relay_cannot_get_a_limit_of_deliveries(node):
    """Its events would become dead. Other settings can be changed."""
    publish(node, 1)
    relay(node).once()
    [used] = node.schedules.all()
    with pytest.raises(Conflict, match="a relay must not lose events"):
        node.schedules.put(msgspec.structs.replace(used, max_attempts=3))
    assert node.schedules.all() == [used]
    changed = msgspec.structs.replace(used, max_lease_ms=60_000)
    node.schedules.put(changed)
    assert node.schedules.all() == [changed]


def test_a_source_that_was_deleted_and_created_again(node):
    """Its cursors would name other events."""
    publish(node, 1)
    relay(node).once()
    node.log.delete("orders")
    node.log.create(EventType("orders", partitions=2))
    with pytest.raises(Conflict, match="created again"):
        relay(node)
    publish(node, 2)
    relay(node, schedule="another").once()
    assert sorted(relayed(node)) == [1, 2]


@pytest.mark.parametrize("before", [20, 1, 0])
def test_events_that_expired_before_they_were_filled(node, before):
    """The relay has lost them, and stops with an error that says so, also if they are the first of a partition."""
    publish(node, *range(before))
    relay(node).once()
    node.log.update(EventType("orders", partitions=2, options=Options(retention_time=1)))
    publish(node, *range(20))
    node.log.admin.switch("orders", "second")
    publish(node, 99)
    entry = node.log.types.entry("orders")
    removed = msgspec.structs.replace(entry.timelines[0], cleaned_up_at=to_rfc3339(node.clock.now_ms()))
    assert node.log._catalog.remove_timeline(removed, 0)
    with pytest.raises(Gap, match="have expired"):
        relay(node).once()


def test_another_process_runs_the_relay(opened, node):
    """A second one does not disturb it."""
    process = relay(node)
    with process._alive():
        assert process._leases.take(process.owner, SCHEDULE)
        with pytest.raises(Conflict, match="another process runs the relay"):
            relay(opened()).once()
