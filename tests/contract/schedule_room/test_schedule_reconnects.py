"""Clients of the schedule whose connections break and whose node restarts. Only over HTTP."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

import strandline
from lossy_proxy import LossyProxy
from services import DEADLINE_S, Server, until
from strandline import Message, Schedule
from strandline.errors import LeaseLost, OutcomeUnknown, Unavailable
from strandline.schedule import OwnerAct, ScheduleMessages, raise_for_failed
from strandline.schedule.model import LeaseAct, Moment
from strandline.schedule.rules import MAX_MS

LEASE_MS = 60_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("node") / "data", logs_level="warning") as started:
        yield started


@pytest.fixture
def server(node: Server) -> Server:
    """A node that the test may kill and start."""
    node.bring_back()
    return node


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"jobs-{next(_numbers)}"


@pytest.fixture
def messages(server: Server, name: str) -> Iterator[ScheduleMessages]:
    """A schedule over a connection that does not break by itself."""
    with strandline.connect(server.url, timeout=30) as remote:
        remote.schedules.create(Schedule(name))
        yield remote.schedule(name)


@pytest.fixture
def proxy(server: Server) -> Iterator[LossyProxy]:
    made = LossyProxy(server.port)
    yield made
    made.close()


@pytest.fixture
def lossy(messages: ScheduleMessages, proxy: LossyProxy) -> Iterator[ScheduleMessages]:
    """The same schedule through the proxy."""
    with strandline.connect(f"http://127.0.0.1:{proxy.port}", timeout=30) as remote:
        yield remote.schedule(messages.name)


def put(messages: ScheduleMessages, *values: object) -> None:
    raise_for_failed(messages.create([Message(value, id=f"m-{value}") for value in values]))


def left(messages: ScheduleMessages) -> int:
    return messages.counts(0, MAX_MS).total


# -- requests


@pytest.mark.parametrize("lose", ["lose_request", "lose_answer_to"])
def test_changes_are_sent_again(lossy, messages, proxy, lose):
    """Ids and versions make it safe: nothing is stored or deleted twice, and nothing is reported as lost."""
    getattr(proxy, lose)(b"create-me")
    (made,) = lossy.create([Message("create-me")])
    raise_for_failed([made])
    assert proxy.lost.is_set()
    assert left(messages) == 1
    getattr(proxy, lose)(b"/delete")
    raise_for_failed(lossy.delete([OwnerAct(made.id, "default")]))
    assert proxy.lost.is_set()
    assert left(messages) == 0


def test_changes_wait_for_a_node_that_restarts(server, messages):
    """A create is sent again until the node answers."""
    put(messages, 1)
    server.kill()
    bringing_back = threading.Thread(target=server.start)
    bringing_back.start()
    try:
        until(lambda: _created(messages), "a create that succeeds")
    finally:
        bringing_back.join(DEADLINE_S)
    assert left(messages) == 2


def _created(messages: ScheduleMessages) -> bool:
    """On a loaded machine the start can take longer than a create is repeated."""
    try:
        put(messages, 2)
    except (Unavailable, OutcomeUnknown):
        return False
    return True


# -- sessions


@pytest.mark.parametrize("lose", ["lose_request", "lose_answer_to"])
@pytest.mark.parametrize("act", ["delete", "extend", "release"])
def test_what_a_consumer_does_survives_a_broken_connection(lossy, messages, proxy, lose, act):
    """The session is opened again, its leases are handed back, and the act is repeated with the new version."""
    put(messages, 1, 2)
    with lossy.consume("ada", lease_ms=LEASE_MS) as leases:
        lease = next(leases)
        getattr(proxy, lose)(b"")
        getattr(lease, act)(**({"in_ms": 3_600_000} if act == "release" else {}))
        assert proxy.lost.is_set()
        if act == "extend":
            lease.delete()
        other = next(leases)
        assert other.id != lease.id
        other.delete()
    assert left(messages) == (1 if act == "release" else 0)


def test_a_lease_that_is_handed_back_is_not_delivered_twice(server, lossy, messages):
    """The node is killed while a handler works: the handler keeps its lease, and gets no second one."""
    put(messages, 1)
    with lossy.consume("ada", lease_ms=LEASE_MS) as leases:
        lease = next(leases)
        server.kill()
        server.start()
        put(messages, 2)
        assert leases.receive(timeout=0.2) is None  # the credit is 1
        lease.delete()
        second = next(leases)
        assert second.id == "m-2"
        second.delete()
    assert left(messages) == 0


def test_a_lease_that_is_handed_back_survives_the_end_of_its_consumer(lossy, messages, proxy):
    """The program still works on it when the consumer is closed just after it connected again."""
    put(messages, 1)
    leases = lossy.consume("ada", lease_ms=LEASE_MS)
    lease = next(leases)
    broken = leases._feed
    proxy.lose_request(b"")
    until(lambda: leases.receive(timeout=0) is None and leases._feed is not broken, "another session")
    leases.close()
    assert messages.pull("bob", LEASE_MS, 1) == []
    lease.delete()
    assert left(messages) == 0


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_consumer_waits_for_its_node(server, messages, end):
    """A consumer that waits connects again after a crash and after an orderly stop, and gets what comes due."""
    with messages.consume("ada", lease_ms=LEASE_MS) as leases:
        assert leases.receive(timeout=0) is None
        got = []
        waiting = threading.Thread(target=lambda: got.append(next(leases)))
        waiting.start()
        getattr(server, end)()
        server.start()
        put(messages, 7)
        waiting.join(DEADLINE_S)
        assert [lease.body for lease in got] == [7]
        got[0].delete()
    assert left(messages) == 0


def test_workers_lose_nothing_while_their_node_is_killed(server, messages):
    """Every message is handled at least once, and none is left."""
    put(messages, *range(60))
    seen, stop = set(), threading.Event()
    halfway = threading.Event()

    def handler(lease):
        seen.add(lease.body)
        if len(seen) > 20:
            halfway.set()

    worker = threading.Thread(target=lambda: messages.work(handler, "ada", threads=4, lease_ms=2_000, stop=stop))
    worker.start()
    halfway.wait(DEADLINE_S)
    server.kill()
    server.start()
    until(lambda: left(messages) == 0, "an empty schedule")
    stop.set()
    worker.join(DEADLINE_S)
    assert seen == set(range(60))


def test_an_act_without_a_node_fails_when_its_lease_ends(server, messages):
    """The outcome is unknown or the server unavailable; after the end of the lease there is no reason to try."""
    put(messages, 1)
    with messages.consume("ada", lease_ms=500) as leases:
        lease = next(leases)
        server.kill()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            lease.delete()
    server.start()
    assert left(messages) == 1


def test_leases_that_were_not_taken_are_released(server, messages):
    """A consumer with credit that closes does not keep others waiting for the end of its leases."""
    put(messages, 1, 2, 3)
    with messages.consume("ada", lease_ms=LEASE_MS, credit=3) as ada:
        first = next(ada)
        until(lambda: messages.counts(0, MAX_MS).processing == 3, "three leases")
    with messages.consume("bob", lease_ms=LEASE_MS, credit=3) as bob:
        others = [next(bob), next(bob)]
        for lease in (first, *others):
            lease.delete()
    assert left(messages) == 0


def test_leases_on_their_way_to_a_consumer_that_closes_are_released(server, messages):
    """They were sent, although nobody asks for them any more."""
    put(messages, *range(500))
    for number in range(4):
        for settled, lease in enumerate(messages.consume(f"ada-{number}", lease_ms=LEASE_MS, credit=10), 1):
            lease.delete()
            if settled == 60:
                break
    counts = messages.counts(0, MAX_MS)
    assert (counts.total, counts.processing) == (500 - 4 * 60, 0)


def test_a_consumer_that_closes_without_waiting_leaves_no_lease_behind(server, messages):
    """A lease that crossed its close frame would be nobody's until it expires."""
    rounds = 40
    for number in range(rounds):
        put(messages, 2 * number, 2 * number + 1)
        with messages.consume(f"ada-{number}", lease_ms=LEASE_MS) as ada:
            while (lease := ada.receive(0)) is not None:
                lease.delete()
    until(lambda: messages.counts(0, MAX_MS).processing == 0, "the leases that nobody got")


def test_a_paused_consumer_cannot_change_what_it_lost(server, messages):
    """An old version is refused after the lease was given to another consumer."""
    put(messages, 1)
    with messages.consume("ada", lease_ms=100) as ada, messages.consume("bob", lease_ms=2_000) as bob:
        lease = ada.receive(timeout=0.05) or next(bob)
        other = next(bob if lease.message.consumer == "ada" else ada)
        with pytest.raises(LeaseLost):
            lease.delete()
        assert other.id == lease.id


def test_the_clock_of_the_server_counts(tmp_path):
    """Leases expire by the clock of the server, which here is years away from the client's."""
    far = 2_000_000_000_000
    with (
        Server(tmp_path / "far", env={"STRANDLINE_TEST_CLOCK": f"{far},1"}, logs_level="warning") as server,
        strandline.connect(server.url, timeout=30) as remote,
    ):
        remote.schedules.create(Schedule("jobs"))
        messages = remote.schedule("jobs")
        put(messages, 1)
        with messages.consume("ada", lease_ms=LEASE_MS) as leases:
            lease = next(leases)
            assert lease.expires_at_ms > far
            assert 0 < lease.remaining_ms < LEASE_MS + 1_000
            lease.delete()
        report = remote.schedules.clocks()
        assert [client.name for client in report.clients] == ["ada"]


def test_a_frame_may_be_as_large_as_a_body(server):
    """Bodies of several megabytes are pushed and released."""
    with strandline.connect(server.url, timeout=60) as remote:
        remote.schedules.create(Schedule("large", max_body_bytes=8 << 20))
        messages = remote.schedule("large")
        raise_for_failed(messages.create([Message(b"x" * (6 << 20), id="large")]))
        with messages.consume("ada") as leases:
            lease = next(leases)
            assert lease.body == b"x" * (6 << 20)
            raise_for_failed(
                messages.release([LeaseAct("large", "ada", lease.version, Moment(1000, relative=True))])
            )
