"""Closed timelines after their retention time: marked, kept for a delay, deleted; on every catalog and storage.

Two platforms, as two nodes, share their data. Only the tests advance the clock.
"""

from __future__ import annotations

import logging
import threading

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from msgspec.structs import replace
from switching_place import DELAY_MS, Opener, publish, read

from services.kafka import Broker
from strandline import EventType
from strandline.clock import ManualClock
from strandline.errors import Conflict, InvalidCursor, NotFound, Unavailable
from strandline.log import CursorText, DistanceQuery, Options
from strandline.log.model import Timeline
from strandline.log.storage import kafka_topics
from strandline.log.subscriptions.model import Subscription, SubscriptionCursor
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.platform import Platform
from strandline.settings import Settings

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


@pytest.fixture
def node(opened: Opener, clock: ManualClock) -> Platform:
    """A node whose event type `orders` got three events, was switched, and got two more events an hour later."""
    platform = opened()
    platform.log.create(EventType("orders", options=Options(DAY_MS)))
    publish(platform, 0, 1, 2)
    platform.log.admin.switch("orders", "second")
    clock.advance(HOUR_MS)
    publish(platform, 3, 4)
    return platform


def upkeep(platform: Platform) -> list[tuple[int, int]]:
    """One round of upkeep: for each removed timeline its order and the number of unread events."""
    done = platform.log.upkeep.run()
    return [(removed.timeline.order, removed.unread) for removed in done]


def has_topic(platform: Platform) -> bool:
    """Whether the storage has the first timeline's topic."""
    first = platform.log.timelines("orders")[0]
    try:
        platform.log._storages.get(first.storage_id).bounds(first.topic)
    except NotFound:
        return False
    return True


def cursor(offset: str) -> dict[str, str]:
    return {"0": offset}


OLDER = "001-0001-000000000000000001"
END = "001-0001-000000000000000002"
LATER = "001-0002-000000000000000000"


def test_a_timeline_goes_after_the_retention_time(opened: Opener, node: Platform, clock: ManualClock):
    """All nodes see the mark at once; the topic is deleted after a delay for running reads, and the row stays."""
    other = opened()
    clock.advance(DAY_MS - HOUR_MS - 1)
    assert upkeep(node) == []
    assert node.log.timelines("orders")[0].cleaned_up_at is None
    clock.advance(1)
    assert upkeep(node) == [(1, 0)]
    assert upkeep(other) == upkeep(node) == []
    for platform in (node, other):
        old, new = platform.log.timelines("orders")
        assert (old.cleaned_up_at is None, new.cleaned_up_at) == (False, None)
        assert old.latest_position == {"0": 2}
    assert has_topic(node)
    clock.advance(DELAY_MS - 1)
    upkeep(other)
    assert has_topic(node)
    assert has_topic(other)
    clock.advance(1)
    upkeep(other)
    assert not has_topic(other)
    upkeep(node)
    assert not has_topic(node)
    publish(node, 5)
    assert read(other) == [3, 4, 5]
    assert [timeline.order for timeline in other.log.timelines("orders")] == [1, 2]


def test_of_two_nodes_one_removes(opened: Opener, node: Platform, clock: ManualClock):
    """Of two concurrent removals exactly one succeeds; both nodes may delete the topic."""
    nodes = [node, opened()]
    clock.advance(DAY_MS - HOUR_MS)
    for expected in ([(1, 0)], []):
        barrier = threading.Barrier(2)
        found: list[tuple[int, int]] = []

        def run(platform: Platform, barrier=barrier, found=found) -> None:
            barrier.wait(10)
            found.extend(upkeep(platform))

        threads = [threading.Thread(target=run, args=(platform,)) for platform in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == expected
        clock.advance(DELAY_MS)
    assert not any(map(has_topic, nodes))
    assert read(node) == [3, 4]


def test_cursors_in_a_removed_timeline(opened: Opener, node: Platform, clock: ManualClock):
    """Only the end of a removed timeline is valid, before and after its topic is deleted."""
    clock.advance(DAY_MS - HOUR_MS)
    upkeep(node)
    fresh = opened()
    for _ in range(2):
        for platform in (node, fresh):
            assert read(platform) == read(platform, cursor(END)) == read(platform, cursor("001-0002--1")) == [3, 4]
            for gone in (OLDER, "001-0001--1", "1", "-1"):
                with pytest.raises(InvalidCursor) as refused:
                    read(platform, cursor(gone))
                assert refused.value.reason == "UNAVAILABLE"
                assert "available offsets are 001-0002-000000000000000000 to 001-0002-000000000000000001" in str(
                    refused.value
                )
            with pytest.raises(InvalidCursor) as refused:
                read(platform, cursor("001-0001-000000000000000003"))
            assert refused.value.reason == "INVALID_OFFSET"
            query = DistanceQuery(CursorText("0", OLDER), CursorText("0", LATER))
            assert platform.log.distances("orders", [query])[0].distance == 2
            (info,) = platform.log.partitions("orders", [CursorText("0", END)])
            assert (info.oldest_available_offset, info.unconsumed_events) == (LATER, 2)
        clock.advance(DELAY_MS)
        upkeep(fresh)
        upkeep(node)
    assert not has_topic(node)


def test_a_reader_that_is_behind_is_told(node: Platform, clock: ManualClock):
    """A reader inside the removed timeline gets an error; a reader at its end continues."""
    behind = node.log.types.reader("orders", cursor(OLDER))
    through = node.log.types.reader("orders", cursor(END))
    clock.advance(DAY_MS - HOUR_MS)
    upkeep(node)
    with pytest.raises(InvalidCursor) as refused:
        behind.poll(10, 1 << 20)
    assert refused.value.reason == "UNAVAILABLE"
    assert [event["n"] for batch in through.poll(10, 1 << 20) for event in batch.events] == [3, 4]


def test_a_changed_retention_counts_for_what_is_there(node: Platform, clock: ManualClock, request):
    """A changed retention time applies to existing timelines, and to the Kafka topics of those that stay."""
    definition = node.log.get("orders")
    node.log.update(replace(definition, options=Options(2 * DAY_MS)))
    clock.advance(DAY_MS)
    assert upkeep(node) == []
    assert read(node) == [0, 1, 2, 3, 4]
    node.log.update(replace(definition, options=Options(HOUR_MS)))
    assert upkeep(node) == [(1, 0)]
    if "kafka" in request.node.callspec.params["opened"]:
        topics = [timeline.topic for timeline in node.log.timelines("orders")]
        assert [kept_ms(request.getfixturevalue("kafka"), topic) for topic in topics] == [2 * DAY_MS, HOUR_MS]


def kept_ms(kafka: Broker, topic: str) -> int:
    """The retention time of a Kafka topic."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return int(found.result(30)["retention.ms"].value)


@pytest.mark.parametrize("verb", ["bounds_of", "read"])
def test_a_topic_that_goes_while_it_is_looked_at(opened: Opener, node: Platform, clock: ManualClock, verb: str):
    """A read whose topic is deleted meanwhile is UNAVAILABLE, not NotFound."""
    other = opened()
    storage = node.log._storages.get("first")
    act = getattr(storage, verb)

    def removed_meanwhile(*arguments: object, **options: object) -> object:
        setattr(storage, verb, act)
        clock.advance(DAY_MS)
        upkeep(other)
        clock.advance(DELAY_MS)
        upkeep(other)
        storage.tidy()
        return act(*arguments, **options)

    reader = node.log.types.reader("orders", cursor(OLDER))
    setattr(storage, verb, removed_meanwhile)
    with pytest.raises(InvalidCursor) as refused:
        reader.poll(10, 1 << 20)
    assert refused.value.reason == "UNAVAILABLE"
    assert not has_topic(node)


def test_what_a_subscription_has_not_read_is_warned_about(node: Platform, clock: ManualClock, caplog):
    """Unread events are logged and counted: two for one subscription, none for one at the end or not yet begun."""
    for group, offset in {"behind": "001-0001-000000000000000000", "through": END}.items():
        cursors = (SubscriptionCursor("orders", "0", offset),)
        asked = Subscription("app", ("orders",), group, "cursors", cursors)
        node.log.subscriptions.create(asked)
    node.log.subscriptions.create(Subscription("app", ("orders",), "idle", "begin"))
    clock.advance(DAY_MS)
    with caplog.at_level(logging.WARNING, "strandline.log.upkeep"):
        assert upkeep(node) == [(1, 2)]
    (warning,) = [record for record in caplog.records if record.name == "strandline.log.upkeep"]
    assert warning.getMessage() == "2 events of orders, timeline 1, are removed before the subscription read them"


def test_a_storage_can_be_given_up(node: Platform, clock: ManualClock):
    """A storage can be removed and is closed after its last topic is deleted."""
    node.log.admin.set_default_storage("second")
    clock.advance(DAY_MS)
    upkeep(node)
    with pytest.raises(Conflict, match="in use"):
        node.log.admin.remove_storage("first")
    clock.advance(DELAY_MS)
    upkeep(node)
    opened = node.log._storages.get("first")
    node.log.admin.remove_storage("first")
    upkeep(node)
    with pytest.raises(Unavailable, match="closed"):
        opened.bounds("anything")
    with pytest.raises(NotFound):
        node.log._storages.get("first")
    publish(node, 5)
    assert read(node)[-1:] == [5]


def test_an_unavailable_storage_holds_up_nothing_but_its_topics(
    node: Platform, clock: ManualClock, monkeypatch, request
):
    """Marking a timeline needs only the catalog; the deletion of its topic is retried."""
    broker = request.getfixturevalue("kafka") if "kafka" in request.node.callspec.params["opened"] else None
    storage = node.log._storages.get("first")
    clock.advance(DAY_MS)
    with monkeypatch.context() as patched:
        if broker is not None:
            patched.setattr(kafka_topics, "_REQUEST_SECONDS", 1.0)
            broker.pause()
        else:
            patched.setattr(storage, "delete_topic", refuse)
        try:
            node.log.upkeep.remove_timelines()
            assert node.log.timelines("orders")[0].cleaned_up_at is not None
            clock.advance(DELAY_MS)
            node.log.upkeep.sweep()
        finally:
            if broker is not None:
                broker.bring_back()
    assert node.log._catalog.topics_to_delete()
    upkeep(node)
    assert not node.log._catalog.topics_to_delete()
    assert not has_topic(node)


def test_one_event_type_does_not_hold_up_the_others(
    node: Platform, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """If one event type fails, it is retried later, and the timelines of the others are removed."""
    node.log.create(EventType("visits", options=Options(DAY_MS)))
    node.log.admin.switch("visits", "second")
    clock.advance(2 * DAY_MS)

    def broken(store: SubscriptionStore, entry_id: str, timeline: Timeline) -> dict[str, int]:
        if timeline.event_type == "orders":
            raise Unavailable("the subscriptions cannot be reached")
        return {}

    with monkeypatch.context() as patched:
        patched.setattr("strandline.log.upkeep.unread", broken)
        removed = node.log.upkeep.run()
    assert [found.timeline.event_type for found in removed] == ["visits"]
    assert upkeep(node) == [(1, 0)]


def refuse(topic: str) -> None:
    raise Unavailable(f"{topic} cannot be reached")


def test_a_publish_that_slept_meanwhile_goes_to_the_new_timeline(
    opened: Opener, node: Platform, clock: ManualClock
):
    """A paused append whose topic was deleted has stored nothing, so it moves to the new timeline."""
    sleeper = opened()
    sleeper.log.create(EventType("visits", options=Options(DAY_MS)))
    sleeper.log.publish("visits", [{"n": 0}]).raise_for_failed()
    storage = sleeper.log._storages.get("first")
    append = storage.try_append

    def sleeps(topic, batches):
        storage.try_append = append
        sleeper.log.node.coordination.close()  # ends its session for the other nodes
        node.log.admin.switch("visits", "second")
        clock.advance(DAY_MS)
        upkeep(node)
        clock.advance(DELAY_MS)
        upkeep(node)
        storage.tidy()
        if hasattr(storage, "_topics"):
            storage._topics.forget(topic)
        return append(topic, batches)

    storage.try_append = sleeps
    report = sleeper.log.publish("visits", [{"n": 1}])
    assert report.ok
    batches = node.log.read("visits", {"0": "001-0001-000000000000000000"})
    assert [event["n"] for batch in batches for event in batch.events] == [1]


def test_records_that_expire_between_a_look_and_a_read_are_not_skipped(tmp_path, clock: ManualClock):
    """A reader whose next record has expired is UNAVAILABLE, even if the topic has later records."""
    with Platform(tmp_path, Settings(), clock) as platform:
        platform.log.create(EventType("orders", options=Options(DAY_MS)))
        publish(platform, 0)
        clock.advance(HOUR_MS)
        publish(platform, 1)
        storage = platform.log._storages.get("default")
        act = storage.read

        def expired_meanwhile(*arguments: object, **options: object) -> object:
            clock.advance(DAY_MS - HOUR_MS + 1)
            upkeep(platform)
            return act(*arguments, **options)

        reader = platform.log.types.reader("orders", "BEGIN")
        storage.read = expired_meanwhile
        with pytest.raises(InvalidCursor) as refused:
            reader.poll(10, 1 << 20)
        assert refused.value.reason == "UNAVAILABLE"
        storage.read = act
        assert read(platform) == [1]
