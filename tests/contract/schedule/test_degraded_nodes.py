"""Clocks. A node whose time cannot be trusted, or that has lost its session, gives no leases until it recovers."""

from __future__ import annotations

import uuid

import pytest
from broker_place import MINUTE, Answer, BrokerPlace, Listener, SetClock, act, add, names

from services import until
from strandline.clock import SystemClock
from strandline.coordination.settings import CoordinationSettings
from strandline.errors import Unavailable
from strandline.log.settings import CatalogSettings
from strandline.platform import Platform
from strandline.schedule import local
from strandline.schedule.model import ChosenMessage, Schedule
from strandline.schedule.storage.sql import SqlSchedules
from strandline.settings import Settings


def assert_degraded(node, lease, reason):
    """No leases and no pushes; the holder of a lease can still extend and delete it."""
    messages = node.schedule("s")
    with pytest.raises(Unavailable, match=reason):
        messages.pull("bob", MINUTE, 1)
    with pytest.raises(Unavailable, match=reason):
        messages.lease("bob", MINUTE, [ChosenMessage("b")])
    with pytest.raises(Unavailable, match=reason):
        node.schedules.check_ready()
    assert reason in node.schedules.clocks().degraded
    (extended,) = messages.extend([act(lease, MINUTE)])
    assert extended.status == "ok"


@pytest.fixture
def server(postgres, tmp_path):
    opened = BrokerPlace(tmp_path / "data", postgres.url(postgres.new_database()))
    yield opened
    opened.close()


def test_a_node_whose_clock_is_off(server):
    """Its peers see it; their own clocks are right, so they go on."""
    clock = SetClock()
    node, peer = server.node(clock), server.node()
    messages, healthy = node.schedule("s"), peer.schedule("s")
    add(messages, "a", in_ms=-1000)
    (lease,) = messages.pull("ada", MINUTE, 1)
    clock.shift_ms = 2_000
    until(lambda: node.schedules.clocks().degraded, "the measurement")
    add(messages, "b")
    listener = Listener()
    messages.open_push("ada", MINUTE, 10, listener)
    assert_degraded(node, lease, "the clock of this node is")
    assert listener.leases == []
    healthy.pull("cid", MINUTE, 1)
    offsets = until(lambda: [one.offset_ms for one in peer.schedules.clocks().peers if one.offset_ms > 1_500])
    assert len(offsets) == 1
    assert peer.schedules.clocks().degraded is None
    clock.shift_ms = 0
    add(messages, "c")
    until(lambda: {"a", "c"} <= {*names(listener.leases)}, "the recovery")
    node.schedules.check_ready()


def test_the_clocks_of_clients_are_compared_with_the_database(server):
    """The clock of the node does not matter: it is 300 ms ahead here."""
    clock = SetClock()
    clock.shift_ms = 300
    node = server.node(clock)
    node.schedules.start()
    error_ms = node.schedules.clocks().node.error_ms + 2
    for delay_ms in (40, 0, 5):
        before_ms, received_ms = SystemClock().now_ms(), clock.now_ms()
        answered = node.schedules.ping("sdk", received_ms + 700 - delay_ms, received_ms)
        assert before_ms - error_ms <= answered <= SystemClock().now_ms() + error_ms
    report = node.schedules.clocks()
    assert [one.name for one in report.clients] == ["sdk"]
    assert abs(report.node.offset_ms - 300) <= report.node.error_ms + 1
    assert abs(report.clients[0].offset_ms - 1000) <= report.node.error_ms + 1
    assert report.degraded is None


def test_only_the_last_clients_are_kept(nodes):
    room = nodes.node().schedules
    for number in range(1_100):
        room.ping(f"client-{number}", 0, 0)
    room.ping("client-100", 0, 0)
    found = [one.name for one in room.clocks().clients]
    assert len(found) == 1_000
    assert found[-1] == "client-100"
    assert found[0] == "client-101"


@pytest.fixture
def shift(monkeypatch):
    """Shifts the time of the server, for all stores that are opened."""
    found = {"ms": 0}

    def connect(url, databases, clock):
        database = databases.get(url, "schedule.db", fixed_plans=True)
        return SqlSchedules(database, None if database.shared else clock.now_ms, lambda: found["ms"])

    monkeypatch.setattr(local, "connect", connect)
    return found


@pytest.mark.parametrize("back", [3_600_000, 1_500])
def test_no_leases_after_the_time_was_set_back(nodes, shift, back):
    """For as long as it was set back, and at most for the longest lease."""
    clock = SetClock()
    node = nodes.node(clock)
    node.schedules.put(Schedule("s", max_lease_ms=2_000))
    messages = node.schedule("s")
    answer = Answer()
    messages.start_pull("ada", 2_000, 1, MINUTE, answer)
    # The clock of this machine and the server's are both set back, so that only the jump can be noticed.
    clock.shift_ms = -back
    shift["ms"] = -back if nodes.url else 0
    until(lambda: "set back" in (node.schedules.clocks().degraded or ""), "the jump to be noticed")
    with pytest.raises(Unavailable, match="set back"):
        messages.pull("bob", 2_000, 1)
    add(messages, "a")
    until(lambda: answer.found, "the lease after the pause")
    assert names(answer.found[0]) == ["a"]
    assert node.schedules.clocks().degraded is None


def test_no_chosen_lease_after_the_time_was_set_back(nodes, shift):
    """Also if the node has not looked at the time since."""
    clock = SetClock()
    messages = nodes.node(clock).schedule("s")
    assert messages.pull("ada", 2_000, 1) == []
    add(messages, "a", in_ms=-MINUTE)
    clock.shift_ms = -10_000
    shift["ms"] = -10_000 if nodes.url else 0
    with pytest.raises(Unavailable, match="set back"):
        messages.lease("ada", 2_000, [ChosenMessage("a")])


def test_a_lost_coordination_session(tmp_path, postgres, zookeeper):
    """The minority side of a split gives no leases, and goes on when ZooKeeper is back."""
    coordination = CoordinationSettings(url=f"zookeeper://{zookeeper.hosts}/test/{uuid.uuid4().hex}")
    catalog = CatalogSettings(url=postgres.url(postgres.new_database()))
    with Platform(tmp_path, Settings(coordination=coordination, catalog=catalog), SystemClock()) as node:
        node.schedules.create(Schedule("s"))
        messages = node.schedule("s")
        add(messages, "a")
        (lease,) = messages.pull("ada", MINUTE, 1)
        zookeeper.kill()
        until(lambda: node.schedules.clocks().degraded, "the loss of the session")
        assert_degraded(node, lease, "coordination")
        answer = Answer()
        messages.start_pull("bob", MINUTE, 1, MINUTE, answer)
        add(messages, "b")
        zookeeper.bring_back()
        until(lambda: answer.found, "the recovery")
        assert names(answer.found[0]) == ["b"]
