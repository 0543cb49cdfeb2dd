"""A node that is killed or paused while it delivers: nothing is lost, and no message has two active leases."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_place import MINUTE, add, held, names

from peers import Peer
from services import until

WORKER = Path(__file__).with_name("broker_worker.py")
LEASE_MS = 1_500


@pytest.fixture
def peer(nodes, tmp_path):
    nodes.node()
    opened = Peer(WORKER, str(tmp_path / ("peer" if nodes.url else "data")), nodes.url)
    yield opened
    opened.kill()


@pytest.mark.parametrize("point", ["schedule.changed", "schedule.leased", "schedule.delivered", "test.received"])
def test_a_message_of_a_killed_node_is_delivered_again(nodes, peer, point):
    """After its lease, to another consumer. A lease that was not stored is not waited for."""
    messages = nodes.messages()
    add(messages, "a")
    peer.send("consume", "ada", LEASE_MS, 1, f"{point}:kill")
    assert peer.ended() == 9
    found = messages.get("a")
    (lease,) = messages.pull("bob", MINUTE, 1, MINUTE)
    assert lease.message.id == "a"
    assert lease.message.delivery_count == found.delivery_count + 1
    assert lease.message.at_ms - MINUTE >= (found.at_ms if found.consumer else found.due_ms)


def test_a_killed_consumer_that_returns_in_time_gets_its_lease_back(nodes, peer):
    messages = nodes.messages()
    add(messages, "a", "b")
    peer.send("consume", "ada", MINUTE, 1, "test.received:kill")
    assert peer.ended() == 9
    (name,) = held(messages, "ada")
    feed = messages.subscribe("ada", MINUTE, 2)
    first, second = feed.next(MINUTE), feed.next(MINUTE)
    assert (first.message.id, first.message.delivery_count) == (name, 2)
    assert second.message.delivery_count == 1


def test_a_node_that_is_killed_while_it_hands_leases_back(nodes, peer):
    """The next session gets them."""
    messages = nodes.messages()
    add(messages, "a")
    messages.subscribe("ada", MINUTE, 1).next(MINUTE)
    peer.send("consume", "ada", MINUTE, 1, "schedule.handed_back:kill")
    assert peer.ended() == 9
    lease = messages.subscribe("ada", MINUTE, 1).next(MINUTE)
    assert (lease.message.id, lease.message.delivery_count) == ("a", 3)


def test_a_delete_that_was_stored_before_the_kill_counts(nodes, peer):
    messages = nodes.messages()
    add(messages, "a")
    peer.send("consume", "ada", MINUTE, 1, "test.deleted:kill")
    assert peer.receive().message.id == "a"
    assert peer.ended() == 9
    add(messages, "b")
    assert names(messages.pull("ada", MINUTE, 10, MINUTE)) == ["b"]


def test_a_node_that_was_paused_does_not_deliver_expired_leases(nodes, peer):
    """Its message went to another consumer meanwhile."""
    messages = nodes.messages()
    add(messages, "a")
    peer.send("consume", "ada", LEASE_MS, 1, "schedule.leased:stop")
    peer.wait_until_stopped()
    assert names(messages.pull("bob", MINUTE, 1, MINUTE)) == ["a"]
    peer.wake()
    add(messages, "b")
    assert peer.receive().message.id == "b"


def test_a_node_that_was_paused_before_it_leases_takes_nothing_twice(nodes, peer):
    """Its statement finds that the message has changed."""
    messages = nodes.messages()
    peer.send("consume", "ada", MINUTE, 1, "schedule.due:stop")
    add(messages, "a")
    peer.wait_until_stopped()
    assert names(messages.pull("bob", MINUTE, 1, MINUTE)) == ["a"]
    peer.wake()
    add(messages, "b")
    assert peer.receive().message.id == "b"
    assert messages.get("a").delivery_count == 1


def test_messages_of_a_dead_nodes_buckets_are_not_late(nodes, peer):
    """Its consumers count as there until its heartbeat ends, but only for 5 ms a message."""
    messages = nodes.messages()
    add(messages, "first")
    peer.send("consume", "ada", MINUTE, 1, "test.received:kill")
    assert peer.ended() == 9
    ids = sorted(f"m{n:02}" for n in range(30))
    add(messages, *ids)
    found = []
    until(lambda: found.extend(names(messages.pull("bob", MINUTE, 30))) or len(found) == 30, "all messages")
    assert sorted(found) == ids
