"""Subscriptions, in process and over HTTP."""

from __future__ import annotations

import time
import uuid
from collections import Counter

import msgspec
import pytest

from services import DEADLINE_S, until
from strandline import EventType
from strandline.clock import to_rfc3339
from strandline.errors import Conflict, Invalid, InvalidCursor, NotFound
from strandline.log import Log
from strandline.log.subscriptions import Consumer, StreamParameters, Subscription, SubscriptionCursor
from subscribers import vanish


def publish(log: Log, name: str, numbers) -> None:
    log.publish(name, [{"id": str(n), "n": n} for n in numbers]).raise_for_failed()


def collect(*consumers: Consumer, count: int, commit: bool = True) -> Counter[int]:
    """Receive from the consumers in a loop until they have returned that many events."""
    found: Counter[int] = Counter()

    def complete() -> bool:
        for consumer in consumers:
            batch = consumer.receive(0.05)
            if batch is not None:
                found.update(event["n"] for event in batch.events)
                if commit:
                    consumer.commit(batch)
        return found.total() >= count

    until(complete, f"all {count} events")
    return found


def once(numbers) -> Counter[int]:
    return Counter(numbers)


def everywhere(name: str, offset: str, partitions: int = 3) -> list[SubscriptionCursor]:
    return [SubscriptionCursor(name, str(p), offset) for p in range(partitions)]


def unconsumed(log: Log, subscription_id: str) -> int:
    return sum(
        partition.unconsumed_events or 0
        for stats in log.subscriptions.stats(subscription_id)
        for partition in stats.partitions
    )


def owners(log: Log, subscription_id: str) -> list[str]:
    (stats,) = log.subscriptions.stats(subscription_id)
    return [partition.stream_id for partition in stats.partitions]


# -- reading


def test_a_group_goes_on_where_it_was(log, orders):
    """Committed events are not delivered again; uncommitted events are."""
    with log.subscribe([orders], group="g", read_from="begin") as consumer:
        publish(log, orders, range(10))
        assert collect(consumer, count=10) == once(range(10))
        publish(log, orders, range(10, 15))
        assert collect(consumer, count=5, commit=False) == once(range(10, 15))
    with log.subscribe([orders], group="g") as consumer:
        assert collect(consumer, count=5) == once(range(10, 15))
        assert consumer.receive(0.1) is None
        assert unconsumed(log, consumer.subscription.id) == 0


def test_groups_do_not_disturb_each_other(log, orders):
    """Each group gets all events; a new group starts at the end by default."""
    publish(log, orders, range(3))
    with (
        log.subscribe([orders], group="old", read_from="begin") as old,
        log.subscribe([orders], group="new") as new,
    ):
        publish(log, orders, range(3, 6))
        assert collect(old, count=6) == once(range(6))
        assert collect(new, count=3) == once(range(3, 6))


def test_events_of_a_partition_come_in_order(log, orders):
    """The batches of a partition are in order."""
    publish(log, orders, range(100))
    small = StreamParameters(max_uncommitted_events=1000, batch_limit=7, batch_flush_timeout=1)
    with log.subscribe([orders], group="g", read_from="begin", parameters=small) as consumer:
        seen: dict[str, list[int]] = {}
        while sum(map(len, seen.values())) < 100:
            batch = consumer.receive(DEADLINE_S)
            assert len(batch) <= 7
            seen.setdefault(batch.partition, []).extend(event["n"] for event in batch.events)
            consumer.commit(batch)
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_several_event_types_in_one_subscription(log, orders, name):
    """Each batch names its event type."""
    other = f"{name}-other"
    log.create(EventType(other))
    with log.subscribe([orders, other], group="g", read_from="begin") as consumer:
        publish(log, orders, range(5))
        publish(log, other, range(5, 8))
        found: dict[str, list[int]] = {}
        while sum(map(len, found.values())) < 8:
            batch = consumer.receive(DEADLINE_S)
            found.setdefault(batch.event_type, []).extend(event["n"] for event in batch.events)
            consumer.commit(batch)
    assert {kind: sorted(numbers) for kind, numbers in found.items()} == {orders: [*range(5)], other: [5, 6, 7]}


def test_a_stream_pauses_when_too_much_is_uncommitted(log, orders):
    """A stream at `max_uncommitted_events` pauses until the commit."""
    publish(log, orders, range(30))
    narrow = StreamParameters(max_uncommitted_events=4, batch_limit=2, batch_flush_timeout=1)
    with log.subscribe([orders], group="g", read_from="begin", parameters=narrow) as consumer:
        batches = [consumer.receive(DEADLINE_S)]
        while sum(map(len, batches)) < 4:
            batches.append(consumer.receive(DEADLINE_S))
        assert sum(map(len, batches)) == 4
        assert consumer.receive(0.3) is None
        for batch in batches:
            consumer.commit(batch)
        assert collect(consumer, count=26).total() == 26


def test_consumers_share_the_partitions_and_take_over(log, orders):
    """A second consumer takes a part of the partitions; after the first closes it takes all, without loss."""
    first = log.subscribe([orders], group="g", read_from="begin")
    ident = first.subscription.id
    assert len({*owners(log, ident)}) == 1
    second = log.subscribe([orders], group="g")
    publish(log, orders, range(20))
    found = collect(first, second, count=20)
    until(lambda: collect(first, second, count=0) is not None and len({*owners(log, ident)}) == 2)
    publish(log, orders, range(20, 60))
    found += collect(first, second, count=40)
    first.close()
    publish(log, orders, range(60, 80))
    found += collect(second, count=20)
    second.close()
    assert found == once(range(80))


def test_no_more_consumers_than_partitions(log, name):
    """A consumer without a free partition is refused until another one closes."""
    log.create(EventType(name))
    first = log.subscribe([name], group="g")
    with pytest.raises(Conflict, match="no free slots"):
        log.subscribe([name], group="g")
    first.close()
    until(lambda: owners(log, first.subscription.id) == [""])
    log.subscribe([name], group="g").close()


# -- commits and resets


def test_commits_move_forward_only(log, orders):
    """`commit` is True for a newer cursor and False for one that is not newer."""
    publish(log, orders, range(10))
    with log.subscribe([orders], group="g", read_from="begin") as consumer:
        batch = consumer.receive(DEADLINE_S)
        assert consumer.commit(batch) is True
        assert consumer.commit(batch) is False
        ident = consumer.subscription.id
        behind = SubscriptionCursor(orders, batch.partition, "001-0001--1")
        (result,) = log.subscriptions.commit(ident, batch.stream_id, [behind])
        assert (result.cursor, result.result) == (behind, "outdated")
        stored = {cursor.partition: cursor.offset for cursor in log.subscriptions.cursors(ident)}
        assert stored[batch.partition] == batch.offset


@pytest.mark.parametrize(
    ("partition", "offset"),
    [("0", "001-0001-000000000000000099"), ("9", "001-0001--1"), ("0", "nonsense"), ("0", "001-0007--1")],
)
def test_commits_of_what_is_not_there_are_refused(log, orders, partition, offset):
    """Offsets in the future, unknown partitions, unknown timelines and malformed cursors are refused."""
    with log.subscribe([orders], group="g") as consumer:
        publish(log, orders, range(10))
        batch = consumer.receive(DEADLINE_S)
        with pytest.raises(InvalidCursor):
            log.subscriptions.commit(
                consumer.subscription.id, batch.stream_id, [SubscriptionCursor(orders, partition, offset)]
            )


def test_a_reset_brings_events_back_and_outdates_streams(log, orders):
    """A stream from before the reset cannot commit; its consumer continues from the new position."""
    publish(log, orders, range(9))
    with log.subscribe([orders], group="g", read_from="begin") as consumer:
        ident = consumer.subscription.id
        batch = consumer.receive(DEADLINE_S)
        consumer.commit(batch)
        log.subscriptions.reset(ident, everywhere(orders, "BEGIN"))
        with pytest.raises(Conflict, match="reset"):
            consumer.commit(batch)
        # Batches that the old stream sent before it ended may still arrive; they cannot be committed.
        until(lambda: unconsumed(log, ident) == 9)
        found: Counter[int] = Counter()
        while unconsumed(log, ident):
            batch = consumer.receive(DEADLINE_S)
            if batch.stream_id in owners(log, ident):
                found.update(event["n"] for event in batch.events)
                consumer.commit(batch)
        assert found == once(range(9))


def test_resets_to_the_end_to_an_offset_and_to_a_moment(log, name):
    """After a reset exactly the events after the given position are unconsumed."""
    log.create(EventType(name))
    publish(log, name, range(5))
    time.sleep(0.01)  # separates the timestamps of the two publishes
    moment = to_rfc3339(int(time.time() * 1000))
    publish(log, name, range(5, 8))
    subscription, _ = log.subscriptions.create(Subscription("app", (name,), read_from="begin"))
    log.subscriptions.reset(subscription.id)
    assert unconsumed(log, subscription.id) == 8
    for offset, left in [
        ("END", 0),
        ("begin", 8),
        ("001-0001-000000000000000001", 6),
        (moment, 3),
        ("2001-01-01T00:00:00+02:00", 8),
        ("2101-01-01T00:00:00Z", 0),
    ]:
        log.subscriptions.reset(subscription.id, everywhere(name, offset, 1))
        assert unconsumed(log, subscription.id) == left, offset
    for offset in ("001-0001-000000000000000099", "2024-13-01T00:00:00Z", "2024-05-01T00:00:00", "x"):
        with pytest.raises(InvalidCursor):
            log.subscriptions.reset(subscription.id, everywhere(name, offset, 1))
    with pytest.raises(Invalid, match="does not read"):
        log.subscriptions.reset(subscription.id, everywhere("other", "BEGIN", 1))
    with pytest.raises(Invalid, match="two cursors"):
        log.subscriptions.reset(subscription.id, everywhere(name, "BEGIN", 1) * 2)


def test_a_reset_without_cursors_fixes_the_beginning_once(log, orders):
    """Events after the first reset are read, even if no stream was open; a second reset changes nothing."""
    publish(log, orders, range(3))
    subscription, _ = log.subscriptions.create(Subscription("app", (orders,)))
    assert log.subscriptions.cursors(subscription.id) == []
    log.subscriptions.reset(subscription.id)
    publish(log, orders, range(3, 5))
    log.subscriptions.reset(subscription.id)
    with log.subscriptions.consume(subscription.id) as consumer:
        assert collect(consumer, count=2) == once([3, 4])


# -- definitions


def test_a_subscription_is_found_by_its_key(log, orders):
    """A second create with the same key returns the first subscription unchanged."""
    asked = Subscription("app", (orders,), "g", "begin", annotations={"a": "b"}, authorization={"readers": []})
    made, new = log.subscriptions.create(asked)
    assert new
    assert str(uuid.UUID(made.id)) == made.id
    assert made.created_at == made.updated_at
    assert (made.annotations, made.authorization) == ({"a": "b"}, {"readers": []})
    assert log.subscriptions.create(Subscription("app", (orders,), "g", "end")) == (made, False)
    assert log.subscriptions.get(made.id) == made
    assert log.subscriptions.search("app", [orders]) == [made]
    assert log.subscriptions.search("app", [orders, "other"]) == []


def test_only_its_decoration_can_change(log, orders):
    """Only labels, annotations and authorization can change."""
    made, _ = log.subscriptions.create(Subscription("app", (orders,)))
    log.subscriptions.update(msgspec.structs.replace(made, labels={"team": "x"}))
    assert log.subscriptions.get(made.id).labels == {"team": "x"}
    with pytest.raises(Invalid, match="cannot change"):
        log.subscriptions.update(msgspec.structs.replace(made, consumer_group="other"))


def test_what_makes_no_sense_is_refused(log, orders):
    """Unknown event types and missing, foreign or unavailable cursors are refused."""
    for asked, why in [
        (Subscription("app", ("room.nothing",)), "does not exist"),
        (Subscription("app", (orders,), read_from="cursors"), "initial_cursors"),
        (
            Subscription(
                "app", (orders,), read_from="cursors", initial_cursors=(*everywhere(orders, "BEGIN", 2),)
            ),
            "lacks 2",
        ),
        (
            Subscription("app", (orders,), read_from="cursors", initial_cursors=(*everywhere("other", "BEGIN"),)),
            "does not read",
        ),
        (
            Subscription("app", (orders,), read_from="cursors", initial_cursors=(*everywhere(orders, "9"),)),
            "not available",
        ),
    ]:
        with pytest.raises(Invalid, match=why):
            log.subscriptions.create(asked)


def test_reading_from_given_cursors(log, orders):
    """The given cursors are fixed when the subscription is created."""
    publish(log, orders, range(30))
    ends = [
        SubscriptionCursor(orders, info.partition, info.newest_available_offset) for info in log.partitions(orders)
    ]
    asked = Subscription("app", (orders,), read_from="cursors", initial_cursors=tuple(ends))
    made, _ = log.subscriptions.create(asked)
    assert {(c.partition, c.offset) for c in log.subscriptions.cursors(made.id)} == {
        (c.partition, c.offset) for c in ends
    }
    publish(log, orders, range(30, 35))
    with log.subscriptions.consume(made.id) as consumer:
        assert collect(consumer, count=5) == once(range(30, 35))


def test_a_deleted_subscription_is_gone(log, orders):
    """A deleted subscription is NotFound, also for its open consumer."""
    with log.subscribe([orders], group="g") as consumer:
        ident = consumer.subscription.id
        log.subscriptions.delete(ident)
        with pytest.raises(NotFound):
            consumer.receive(DEADLINE_S)
    for act in (
        log.subscriptions.get,
        log.subscriptions.delete,
        log.subscriptions.cursors,
        log.subscriptions.stats,
        log.subscriptions.reset,
        log.subscriptions.consume,
    ):
        with pytest.raises(NotFound):
            act(ident)
        with pytest.raises(NotFound):
            act("../storages")


def test_an_event_type_made_anew_is_not_read_with_old_cursors(log, data, name):
    """Cursors of a deleted and recreated event type are UNAVAILABLE until a reset, also in the statistics."""
    log.create(EventType(name, partitions=2))
    publish(log, name, range(4))
    with log.subscribe([name], group="g", read_from="begin") as consumer:
        ident = consumer.subscription.id
        collect(consumer, count=4)
    with pytest.raises(Conflict, match=str(ident)):
        log.delete(name)
    vanish(data, name)
    with pytest.raises(InvalidCursor) as error:
        log.subscriptions.consume(ident)
    assert error.value.reason == "UNAVAILABLE"
    log.create(EventType(name, partitions=2))
    publish(log, name, range(10, 16))
    with pytest.raises(InvalidCursor) as error:
        log.subscriptions.consume(ident)
    assert error.value.reason == "UNAVAILABLE"
    (stats,) = log.subscriptions.stats(ident)
    assert [partition.unavailable for partition in stats.partitions] == [True, True]
    assert [partition.unconsumed_events for partition in stats.partitions] == [None, None]
    log.subscriptions.reset(ident, everywhere(name, "BEGIN", 2))
    with log.subscriptions.consume(ident) as consumer:
        assert collect(consumer, count=6) == once(range(10, 16))


def test_statistics_tell_lag_and_streams(log, orders):
    """Before the first stream there is no lag; the age of the oldest unread event is on request."""
    subscription, _ = log.subscriptions.create(Subscription("app", (orders,), read_from="begin"))
    publish(log, orders, range(12))
    (stats,) = log.subscriptions.stats(subscription.id)
    assert [(p.partition, p.state, p.stream_id, p.unconsumed_events) for p in stats.partitions] == [
        (str(n), "unassigned", "", None) for n in range(3)
    ]
    with log.subscriptions.consume(subscription.id) as consumer:
        batch = consumer.receive(DEADLINE_S)
        (stats,) = log.subscriptions.stats(subscription.id, show_time_lag=True)
        assert {(p.state, p.stream_id, p.assignment_type) for p in stats.partitions} == {
            ("assigned", batch.stream_id, "auto")
        }
        assert sum(p.unconsumed_events for p in stats.partitions) == 12
        assert all(p.consumer_lag_seconds >= 0 for p in stats.partitions)
        consumer.commit(batch)
        assert unconsumed(log, subscription.id) == 12 - len(batch)
