"""Publishing under a fence, over all engines: who may publish, before, during and after timeline switches."""

from __future__ import annotations

import pytest
from switching_place import publish, read

from strandline.errors import Fenced, NotFound
from strandline.log import EventType
from strandline.log.storage import Fence
from strandline.log.storage.kafka import KafkaStorage

HEADERS = [[("from", b"test")]]


@pytest.fixture
def node(opened):
    node = opened()
    node.log.create(EventType("orders", partitions=1))
    return node


def fenced(node, fence: Fence, number: int) -> None:
    node.log.fenced.publish("orders", [b'{"n":%d}' % number], HEADERS, fence).raise_for_failed()


def test_only_the_newest_holder_publishes(opened, node):
    """Every raise has the next epoch. The old holder learns it by publishing, holding and raising."""
    other = opened()
    first = node.log.fenced.raise_fence("orders", "relay")
    fenced(node, first, 1)
    second = other.log.fenced.raise_fence("orders", "relay")
    assert (first, second) == (Fence("relay", 1), Fence("relay", 2))
    with pytest.raises(Fenced):
        fenced(node, first, 2)
    with pytest.raises(Fenced):
        node.log.fenced.raise_fence("orders", "relay", first)
    with pytest.raises(Fenced):
        node.log.fenced.hold("orders", first)
    # On Kafka, the attempt of the old holder has taken the place of the newest one, which takes it back.
    other.log.fenced.hold("orders", second)
    fenced(other, second, 3)
    assert other.log.fenced.raise_fence("orders", "relay", second) == Fence("relay", 3)
    assert read(node) == [1, 3]


def test_records_have_headers_and_a_time_that_is_not_too_early(node):
    fence = node.log.fenced.raise_fence("orders", "relay")
    later = node.clock.now_ms() + 5_000
    node.log.fenced.publish("orders", [b"{}"], HEADERS, fence, not_before_ms=later)
    node.log.fenced.publish("orders", [b"{}"], HEADERS, fence, not_before_ms=1)
    (batch,) = node.log.read("orders")
    assert batch.records["timestamp"].to_pylist() == [later, node.clock.now_ms()]
    assert batch.records["headers"].to_pylist() == [[{"key": "from", "value": b"test"}]] * 2


def test_events_that_break_a_rule_are_reported(node):
    fence = node.log.fenced.raise_fence("orders", "relay")
    report = node.log.fenced.publish("orders", [b"[]", b"{}"], HEADERS * 2, fence)
    assert [item.publishing_status for item in report.items] == ["failed", "aborted"]
    assert read(node) == []


def test_a_holder_goes_on_after_a_switch(node):
    """It holds the new timeline first. Readers go from one timeline to the next."""
    fence = node.log.fenced.raise_fence("orders", "relay")
    reader = node.log.types.reader("orders", "BEGIN")
    for number, storage in enumerate(["second", "first", "second"]):
        fenced(node, fence, number)
        node.log.admin.switch("orders", storage)
        with pytest.raises(Fenced):
            fenced(node, fence, 99)
        node.log.fenced.hold("orders", fence)
    fenced(node, fence, 3)
    assert read(node) == [0, 1, 2, 3]
    followed = []
    for _ in range(10):
        followed += [event["n"] for batch in reader.poll(10, 1 << 20) for event in batch.events]
    assert followed == [0, 1, 2, 3]


def test_an_old_holder_is_refused_in_the_new_timeline(opened, node):
    """It was raised before the switch, and the new holder has not published there."""
    other = opened()
    first = node.log.fenced.raise_fence("orders", "relay")
    fenced(node, first, 1)
    second = other.log.fenced.raise_fence("orders", "relay")
    other.log.admin.switch("orders", "second")
    with pytest.raises(Fenced):
        fenced(node, first, 2)
    with pytest.raises(Fenced):
        node.log.fenced.hold("orders", first)
    with pytest.raises(Fenced):
        fenced(node, first, 3)
    other.log.fenced.hold("orders", second)
    fenced(other, second, 4)
    assert read(node) == [1, 4]


def test_an_old_holder_that_sleeps_while_the_storage_changes(opened, node):
    """It has seen the new timeline, and the catalog, before it was replaced. The raise reaches that timeline."""
    other = opened()
    first = node.log.fenced.raise_fence("orders", "relay")
    other.log.admin.switch("orders", "second")
    node.log.fenced.hold("orders", first)
    second = other.log.fenced.raise_fence("orders", "relay")
    with pytest.raises(Fenced):
        fenced(node, first, 1)
    fenced(other, second, 2)
    assert read(node) == [2]


def test_what_a_killed_holder_has_begun_does_not_cut_off_a_timeline(opened, node):
    """Kafka shows no record after an open transaction. A switch ends it, and keeps the events of others."""
    other = opened()
    fence = node.log.fenced.raise_fence("orders", "relay")
    active = node.log.timelines("orders")[-1]
    storage = node.log._storages.get(active.storage_id)
    if not isinstance(storage, KafkaStorage):
        pytest.skip("an append is one transaction of the storage")
    _, producer = storage._fences._held[active.topic, fence.name]
    producer.begin_transaction()
    producer.produce(active.topic, b'{"n":1}', partition=0)
    producer.flush(30)
    publish(other, 2)
    assert read(other) == []
    other.log.admin.switch("orders", "second")
    publish(other, 3)
    assert read(other) == [2, 3]


def test_fences_belong_to_one_life_of_an_event_type(node):
    fence = node.log.fenced.raise_fence("orders", "relay")
    node.log.delete("orders")
    with pytest.raises(NotFound):
        node.log.fenced.raise_fence("orders", "relay")
    node.log.create(EventType("orders"))
    with pytest.raises(Fenced):
        node.log.fenced.hold("orders", fence)
    assert node.log.fenced.raise_fence("orders", "relay") == Fence("relay", 1)
