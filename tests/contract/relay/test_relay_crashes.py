"""A relay that is killed or paused at any step: the next one finishes its work, and publishes nothing twice."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from msgspec.structs import replace
from relay_place import SCHEDULE, killed, publish, relay, relayed, start

from services import DEADLINE_S, is_stopped, until
from strandline.errors import Conflict, Fenced, Gap, Unavailable
from strandline.log import EventType, initiator
from strandline.log.range_source import RangeSource
from strandline.log.switching import Step
from strandline.schedule.model import LeaseAct, ListQuery, Moment
from strandline.schedule.relay.emptying import TargetLog
from strandline.schedule.relay.values import RelayOptions

# In the order in which a relay passes them.
STEPS = [
    "relay.raised",
    "relay.filling",
    "relay.filled",
    "relay.leasing",
    "relay.leased",
    "fenced.append",
    "relay.published",
    "relay.closing",
    "relay.closed",
]


def once(node, **options) -> None:
    """Run the relay when the lease of the killed process has expired."""

    def attempt() -> bool:
        try:
            relay(node, **options).once()
        except Fenced:
            raise
        except Conflict:
            return False
        return True

    until(attempt, "the lease of the relay")


@pytest.mark.parametrize("step", STEPS)
def test_a_relay_that_was_killed(node, step):
    """The next one starts where it ended."""
    publish(node, *range(20))
    killed(node, step)
    publish(node, 20)
    once(node)
    assert sorted(relayed(node)) == [*range(21)]
    assert node.schedules.parts.store.relays.record(SCHEDULE) is None
    assert [*node.schedule(SCHEDULE).list(ListQuery())] == []


def test_a_relay_that_is_killed_again_and_again(node):
    """Also while it finishes the record of the one before."""
    publish(node, *range(20))
    for step in ["relay.published", "relay.reading", "relay.raised", "relay.published", "relay.closing"]:
        killed(node, step)
    once(node)
    assert sorted(relayed(node)) == [*range(20)]


@pytest.mark.parametrize("step", ["relay.raised", "relay.leased", "fenced.append", "relay.published"])
def test_a_relay_that_sleeps_and_is_replaced(node, step):
    """When it wakes up, it cannot publish, and does not disturb its successor."""
    publish(node, *range(20))
    with start(node, f"{step}:stop") as old:
        until(lambda: is_stopped(old.pid), "the pause of the relay")
        once(node)
        assert sorted(relayed(node)) == [*range(20)]
        publish(node, 20)
        once(node)
        os.kill(old.pid, signal.SIGCONT)
        old.communicate(timeout=120)
    assert sorted(relayed(node)) == [*range(21)]
    once(node)
    assert sorted(relayed(node)) == [*range(21)]


def test_the_target_changes_its_storage_after_the_crash(node):
    """What was published is found in the old timeline."""
    publish(node, *range(20))
    killed(node, "relay.published")
    node.log.admin.switch("later", "second")
    node.log.publish("later", [{"n": 100}]).raise_for_failed()
    once(node)
    assert sorted(relayed(node)) == [*range(20), 100]


def test_the_target_is_being_switched_after_the_crash(opened, node, monkeypatch):
    """Until the switch is decided, readers do not see the last events. The relay waits for them."""
    other, reached, go = opened(), threading.Event(), threading.Event()
    commit = initiator._STEPS[Step.COMMIT]

    def waiting(own: object, run: object) -> None:
        reached.set()
        assert go.wait(DEADLINE_S)
        commit(own, run)

    monkeypatch.setitem(initiator._STEPS, Step.COMMIT, waiting)
    publish(node, *range(20))
    assert relayed(node) == []  # this node knows the end of the target before the relay has published
    killed(node, "relay.published")
    switching = threading.Thread(target=other.log.admin.switch, args=("later", "second"))
    switching.start()
    assert reached.wait(DEADLINE_S)
    mark = node.schedules.parts.store.relays.record(SCHEDULE).mark
    ranges = RangeSource(node.log.types, node.data, node.settings.log)
    target = TargetLog(node.log, ranges, RelayOptions("orders", "later", SCHEDULE))
    with pytest.raises(Unavailable, match="not decided yet"):
        target.published_since(mark)
    go.set()
    switching.join()
    once(node)
    assert sorted(relayed(node)) == [*range(20)]


def test_the_target_gets_partitions_after_the_crash(node):
    """Partitions that the record does not name are read from their beginning."""
    publish(node, *range(20))
    killed(node, "relay.leased")
    node.log.admin.grow("later", 4)
    node.log.publish("later", [{"n": number} for number in range(100, 110)]).raise_for_failed()
    once(node)
    assert sorted(relayed(node)) == [*range(20), *range(100, 110)]


@pytest.mark.parametrize(("unsure", "found"), [("publish", [*range(20)]), ("delete", [])])
def test_the_events_that_show_what_was_published_have_expired(node, unsure, found):
    """The relay stops, and an operator decides."""
    publish(node, *range(20))
    killed(node, "relay.published")
    node.log.admin.switch("later", "second")
    expire(node)
    with pytest.raises(Gap, match=r"unknown which of the last 20 events .*--relay-unsure"):
        once(node)
    publish(node, 20)
    once(node, unsure=unsure)
    assert sorted(relayed(node)) == [*found, 20]


def expire(node) -> None:
    """Remove the first timeline of the target."""
    old = node.log.types.entry("later").timelines[0]
    assert node.log._catalog.remove_timeline(replace(old, cleaned_up_at="2024-05-01T12:00:00Z"), 0)


def test_the_target_is_deleted_and_created_again_after_the_crash(node):
    """Its cursors would name other events."""
    publish(node, *range(20))
    killed(node, "relay.published")
    node.log.delete("later")
    node.log.create(EventType("later", partitions=2))
    with pytest.raises(Gap, match="deleted and created again"):
        once(node)
    once(node, unsure="publish")
    assert sorted(relayed(node)) == [*range(20)]


def test_a_consumer_that_takes_messages_of_a_relay(node):
    """A message that was published is deleted whoever holds it, so that it is not published again."""
    publish(node, 1)
    killed(node, "relay.published")
    messages = node.schedule(SCHEDULE)
    store = node.schedules.parts.store
    (held,) = store.relays.record(SCHEDULE).messages
    store.messages.release(SCHEDULE, [leave(store, held.id)])
    assert messages.pull("thief", 60_000, 10, wait_ms=5_000)
    once(node)
    once(node)
    assert relayed(node) == [1]


def leave(store, name: str):
    held = store.messages.get(SCHEDULE, name)
    return LeaseAct(name, held.consumer, held.version, Moment(10, relative=True))
