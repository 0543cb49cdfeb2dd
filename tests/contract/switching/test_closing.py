"""Cursors while a switch closes a timeline, in processes that have seen different ends of it.

Two platforms share one directory. The second has seen fewer events when the first stops during its switch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

import strandline
from services import DEADLINE_S, until
from strandline import EventType
from strandline.errors import InvalidCursor
from strandline.log import initiator
from strandline.log.model import CursorText, DistanceQuery, ShiftedCursor, StorageInfo
from strandline.log.storage.registry import SqliteConfiguration
from strandline.log.subscriptions import StreamParameters, Subscription, SubscriptionCursor
from strandline.log.switching import Step
from strandline.platform import Platform

OTHER = StorageInfo("other", "sqlite", sqlite_configuration=SqliteConfiguration("other"))
NEWEST = "001-0001-000000000000000009"
EARLY = "001-0001-000000000000000004"
PARAMETERS = StreamParameters(max_uncommitted_events=100, batch_limit=5, batch_flush_timeout=1)


@dataclass
class Closing:
    """`behind` has seen 5 of 10 events; the switch is decided after `go` is set."""

    ahead: Platform
    behind: Platform
    subscription_id: str
    stream_id: str
    go: threading.Event
    pool: ThreadPoolExecutor

    def waits(self, act: Callable[[], object]) -> Future:
        """Start the call and check that it waits for the decision."""
        answer = self.pool.submit(act)
        with pytest.raises(TimeoutError):
            answer.result(0.2)
        return answer


@pytest.fixture
def closing(tmp_path, monkeypatch) -> Iterator[Closing]:
    closed, go = threading.Event(), threading.Event()
    seal = initiator._STEPS[Step.SEAL]

    def stop_there(*arguments: object) -> None:
        closed.set()
        assert go.wait(DEADLINE_S)
        seal(*arguments)

    monkeypatch.setitem(initiator._STEPS, Step.SEAL, stop_there)
    with strandline.open(tmp_path) as one, strandline.open(tmp_path) as other, ThreadPoolExecutor(4) as pool:
        one.log.create(EventType("orders"))
        one.log.admin.add_storage(OTHER)
        one.log.publish("orders", [{"n": n} for n in range(5)]).raise_for_failed()
        assert other.log.partitions("orders")[0].newest_available_offset == EARLY
        asked = Subscription("app", ("orders",), read_from="begin")
        ident = str(one.log.subscriptions.create(asked)[0].id)
        one.log.publish("orders", [{"n": n} for n in range(5, 10)]).raise_for_failed()
        with one.log.subscriptions.consume(ident, PARAMETERS) as consumer:
            batches = [consumer.receive(DEADLINE_S), consumer.receive(DEADLINE_S)]
            assert batches[-1].offset == NEWEST
            switching = pool.submit(one.log.admin.switch, "orders", "other")
            assert closed.wait(DEADLINE_S)
            assert other.log.partitions("orders")[0].newest_available_offset == EARLY
            yield Closing(one, other, ident, batches[-1].stream_id, go, pool)
            go.set()
            switching.result(DEADLINE_S)


def numbers(platform: Platform, offset: str) -> list[int]:
    return [event["n"] for batch in platform.log.read("orders", {"0": offset}) for event in batch.events]


def test_a_reader_goes_on_from_what_another_process_gave_it(closing: Closing):
    """A cursor of another process is checked after the decision: only then is it known whether it exists."""
    answer = closing.waits(lambda: numbers(closing.behind, NEWEST))
    closing.go.set()
    assert answer.result(DEADLINE_S) == []
    assert numbers(closing.behind, EARLY) == [5, 6, 7, 8, 9]


def test_arithmetic_waits_as_well(closing: Closing):
    """Lag, distance and shift of a cursor of another process wait for the decision."""
    log = closing.behind.log
    newest, early = CursorText("0", NEWEST), CursorText("0", EARLY)
    lag = closing.waits(lambda: log.lag("orders", [newest]))
    distance = closing.waits(lambda: log.distances("orders", [DistanceQuery(early, newest)]))
    shifted = closing.waits(lambda: log.shift("orders", [ShiftedCursor("0", NEWEST, -5)]))
    closing.go.set()
    assert lag.result(DEADLINE_S)[0].unconsumed_events == 0
    assert distance.result(DEADLINE_S)[0].distance == 5
    assert shifted.result(DEADLINE_S) == [early]


def test_a_commit_through_another_node_is_taken(closing: Closing):
    """After the decision, a delivered cursor is committed and a cursor that was never delivered is refused."""
    rooms = closing.behind.log.subscriptions
    newest, future = (SubscriptionCursor("orders", "0", offset) for offset in (NEWEST, NEWEST[:-2] + "10"))
    taken = closing.waits(lambda: rooms.commit(closing.subscription_id, closing.stream_id, [newest]))
    refused = closing.waits(lambda: rooms.commit(closing.subscription_id, closing.stream_id, [future]))
    closing.go.set()
    assert [result.result for result in taken.result(DEADLINE_S)] == ["committed"]
    with pytest.raises(InvalidCursor):
        refused.result(DEADLINE_S)


def test_a_reset_to_what_another_node_showed_is_taken(closing: Closing):
    """A reset to a cursor of another node waits for the decision."""
    rooms = closing.behind.log.subscriptions
    newest = SubscriptionCursor("orders", "0", NEWEST)
    done = closing.waits(lambda: rooms.reset(closing.subscription_id, [newest]))
    closing.go.set()
    done.result(DEADLINE_S)
    assert [cursor.offset for cursor in rooms.cursors(closing.subscription_id)] == [NEWEST]


def test_a_stream_does_not_mind_that_others_are_ahead(closing: Closing):
    """A stream whose node has not seen the committed offset waits without an error."""
    newest = SubscriptionCursor("orders", "0", NEWEST)
    closing.ahead.log.subscriptions.commit(closing.subscription_id, closing.stream_id, [newest])
    closing.ahead.log.subscriptions._store.leases.leave(closing.stream_id)
    with closing.behind.log.subscriptions.consume(closing.subscription_id, PARAMETERS) as consumer:
        assert consumer.receive(0.3) is None
        (stats,) = closing.behind.log.subscriptions.stats(closing.subscription_id, show_time_lag=True)
        assert [partition.unconsumed_events for partition in stats.partitions] == [0]
        closing.go.set()
        closing.ahead.log.publish("orders", [{"n": 10}]).raise_for_failed()
        found: list[int] = []
        until(lambda: found or found.extend(e["n"] for b in [consumer.receive(0.1)] if b for e in b.events))
        assert found == [10]
