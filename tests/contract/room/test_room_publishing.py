"""Publishing, in process and over HTTP."""

from __future__ import annotations

import gc
import threading
import uuid
import weakref

import msgspec
import pyarrow as pa
import pytest

from services import until
from strandline import EventType, Schema
from strandline.errors import Malformed, NotFound, PublishFailed
from strandline.log import Log


def values(log: Log, name: str) -> list[bytes]:
    return [value for batch in log.read(name) for value in batch.values]


def statuses(report) -> list[tuple[str, str]]:
    return [(item.publishing_status, item.step) for item in report.items]


@pytest.mark.parametrize(
    "events",
    [
        [{"id": 1}, {"id": 2}],
        [b'{"id":1}', '{"id":2}'],
        b'[{"id":1},{"id":2}]',
        '[ {"id":1} , {"id":2} ]',
        ({"id": number} for number in (1, 2)),
        pa.table({"id": [1, 2]}),
    ],
    ids=["dicts", "texts", "bytes", "str", "generator", "table"],
)
def test_events_come_in_many_forms(log: Log, name: str, events):
    """Dicts, JSON texts, one JSON array and Arrow tables become the same events."""
    log.create(EventType(name))
    # The generator is shared by the tests of both rooms and can be consumed only once.
    events = [{"id": 1}, {"id": 2}] if hasattr(events, "send") else events
    assert log.publish(name, events).raise_for_failed().count == 2
    assert values(log, name) == [b'{"id":1}', b'{"id":2}']


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 1.10, "e": 1E5}',
        '{"n": 123456789012345678901234567890}',
        '{"n": 1e400}',
        '{"s": "\\u00e4\\ud83d\\ude00 äöü 😀 \\u0000"}',
        '{ "spaced" :\n [ 1,\t2 ] }',
        '{"twice": 1, "twice": 2}',
        "{}",
    ],
)
def test_an_event_keeps_its_own_bytes(log: Log, name: str, text: str):
    """A reader gets exactly the bytes that were published."""
    log.create(EventType(name))
    log.publish(name, [text]).raise_for_failed()
    assert values(log, name) == [text.encode()]


def test_nothing_at_all_is_published_in_no_time(log: Log, orders: str):
    """An empty publish succeeds and writes nothing."""
    assert log.publish(orders, []).ok
    assert values(log, orders) == []


def test_one_broken_event_keeps_all_out(log: Log, name: str):
    """The invalid event fails with its step, the others are aborted, and nothing is written."""
    log.create(EventType(name, schema=Schema.json({"required": ["id"]})))
    report = log.publish(name, [{"id": 1}, {"x": 1}])
    assert statuses(report) == [("aborted", "none"), ("failed", "validating")]
    assert report.count == 2
    assert report.rejected
    with pytest.raises(PublishFailed, match="first failure at validating"):
        report.raise_for_failed()
    assert values(log, name) == []


@pytest.mark.parametrize(
    "texts",
    [
        ['{"a": 1', "{}"],
        ['{"a": 1},{"b": 2}'],
        ['{"a": 1', '"b": 2}'],
        ['{"a":1},{"x":[1', "2]}"],
        ["{}], [{}", "{}"],
        ["NaN"],
        [""],
        [b"\xff{}"],
    ],
)
def test_a_text_that_is_not_one_event_fails_alone(log: Log, name: str, texts: list):
    """Each text is exactly one JSON value or a failed item; texts are never joined."""
    log.create(EventType(name))
    report = log.publish(name, texts)
    assert len(report.items) == len(texts)
    assert {item.publishing_status for item in report.items} <= {"failed", "aborted"}
    assert report.rejected
    assert values(log, name) == []


def test_a_broken_text_for_an_unknown_name_is_still_not_found(log: Log):
    """An unknown name is NotFound even if the events are invalid."""
    with pytest.raises(NotFound):
        log.publish("absent", ["{"])


@pytest.mark.parametrize("body", ["{}", "[{}", "", "[{}] x"])
def test_a_body_that_is_no_array_is_malformed(log: Log, orders: str, body: str):
    """A body must be a JSON array."""
    with pytest.raises(Malformed):
        log.publish(orders, body)


def test_an_event_without_its_key_fails_at_partitioning(log: Log, orders: str):
    """The step of the failed item is `partitioning`."""
    report = log.publish(orders, [{"id": "1"}, {"other": "1"}])
    assert statuses(report) == [("aborted", "none"), ("failed", "partitioning")]


def test_an_event_that_is_too_large_fails_at_validating(log: Log, name: str):
    """An event above the size limit is a failed item."""
    log.create(EventType(name))
    report = log.publish(name, [{"x": "a" * 1_000_000}])
    assert statuses(report) == [("failed", "validating")]


def test_business_events_are_enriched(log: Log, name: str):
    """Publishing completes the metadata, with the given flow id; a failed item names the eid."""
    log.create(EventType(name, category="business"))
    eid = str(uuid.uuid4())
    metadata = {"eid": eid, "occurred_at": "2024-05-01T12:00:00.123456789+02:00"}
    log.publish(name, [{"metadata": metadata, "a": 1}], flow_id="flow-7").raise_for_failed()
    (event,) = [event for batch in log.read(name) for event in batch.events]
    assert event["metadata"]["occurred_at"] == metadata["occurred_at"]
    assert event["metadata"]["flow_id"] == "flow-7"
    assert event["metadata"]["event_type"] == name
    assert event["metadata"]["partition"] == "0"
    (item,) = log.publish(name, [{"metadata": {**metadata, "occurred_at": "today"}}]).items
    assert item.eid == eid


def test_a_large_publish_arrives_whole(log: Log, name: str):
    """Tens of thousands of events in one publish keep their order."""
    log.create(EventType(name))
    log.publish(name, [{"n": number, "pad": "x" * 50} for number in range(50_000)]).raise_for_failed()
    found = [event["n"] for batch in log.read(name, batch_size=7_000) for event in batch.events]
    assert found == list(range(50_000))


def test_more_events_than_allowed_are_too_large(log: Log, name: str):
    """A publish above the maximum number of events writes nothing."""
    log.create(EventType(name))
    with pytest.raises(Exception, match="at most 100000") as caught:
        log.publish(name, [b"{}"] * 100_001)
    assert caught.value.code == "too_large"
    assert values(log, name) == []


def test_submits_of_one_thread_keep_their_order(log: Log, name: str):
    """Submits that do not wait and publishes that wait are written in the order of the calls."""
    log.create(EventType(name))
    futures = []
    for number in range(0, 60, 3):
        futures.append(log.submit(name, [{"n": number}]))
        futures.append(log.submit(name, [{"n": number + 1}]))
        log.publish(name, [{"n": number + 2}]).raise_for_failed()
    assert all(future.result(30).ok for future in futures)
    assert [event["n"] for batch in log.read(name) for event in batch.events] == list(range(60))


def test_threads_publish_side_by_side(log: Log, name: str):
    """The events of each thread stay in order, and no event is lost or duplicated."""
    log.create(EventType(name))

    def work(thread: int) -> None:
        for number in range(20):
            log.publish(name, [{"thread": thread, "n": number}]).raise_for_failed()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    events = [event for batch in log.read(name) for event in batch.events]
    for number in range(6):
        assert [event["n"] for event in events if event["thread"] == number] == list(range(20))


def test_a_submit_takes_the_events_as_they_are_now(log: Log, name: str):
    """A change of an event after `submit` has no effect."""
    log.create(EventType(name))
    event = {"n": 1}
    future = log.submit(name, [event])
    event["n"] = 2
    future.result(30).raise_for_failed()
    assert values(log, name) == [msgspec.json.encode({"n": 1})]


def test_a_finished_publish_is_let_go_at_once(embedded: Log, name: str):
    """A finished publish frees its events without the garbage collector."""
    embedded.create(EventType(name))
    gc.disable()
    try:
        future = embedded.submit(name, [{"id": 1}, {"id": 2}])
        assert future.result(20).ok
        gone = weakref.ref(future)
        del future
        until(lambda: gone() is None)
    finally:
        gc.enable()
