"""The failures of a broker and of a consumer that the design of the schedule lists, each at its exact moment.

"Once" in the name of a test: a consumer processes the message once in spite of the failure. "Twice": a second
consumer may begin, but never while the first lease is active, and the first consumer cannot change the message any
more. That the minority side of a network split gives no leases is in `contract/schedule/test_degraded_nodes.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import strandline
from peers import Peer
from services import DEADLINE_S, Server
from strandline import Message, Schedule
from strandline.errors import LeaseLost, OutcomeUnknown, Unavailable
from strandline.schedule import ScheduleMessages, raise_for_failed
from strandline.schedule.model import ChosenMessage, Lease, LeaseAct, Moment, StoredMessage
from strandline.schedule.room import LeaseFeed

CONSUMER = Path(__file__).with_name("failing_consumer.py")
MINUTE = 60_000
#: A lease that a test waits for. It is long enough for what happens during it on a loaded machine.
LEASE_MS = 5_000
#: Where a node is killed after it has stored its second change, before the answer. The first one is a lease.
SECOND_CHANGE = "schedule.stored:kill:2"
BROKEN = (Unavailable, OutcomeUnknown)
_numbers = itertools.count(1)

Nodes = Callable[..., Server]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def nodes(request, tmp_path_factory) -> Iterator[Nodes]:
    """A function that starts a node. All nodes have the same schedules."""
    data = tmp_path_factory.mktemp("failures") / "data"
    flags = {"logs_level": "warning"}
    if request.param == "postgres":
        postgres = request.getfixturevalue("postgres")
        flags["schedule_url"] = postgres.url(postgres.new_database())
    with ExitStack() as stack:

        def start(point: str = "") -> Server:
            env = {"STRANDLINE_TEST_FAILPOINT": point} if point else {}
            node = Server(data, env=env, **flags).start()
            stack.callback(node.process.kill)
            return node

        yield start


@pytest.fixture(scope="module")
def healthy(nodes: Nodes) -> Server:
    return nodes()


@pytest.fixture
def messages(healthy: Server) -> Iterator[ScheduleMessages]:
    """A schedule through a node that does not fail, with the message `a`."""
    with strandline.connect(healthy.url, timeout=30) as remote:
        name = f"failures-{next(_numbers)}"
        remote.schedules.create(Schedule(name))
        add(remote.schedule(name), "a")
        yield remote.schedule(name)


@pytest.fixture
def failing(nodes: Nodes, messages: ScheduleMessages) -> Iterator[Callable[..., tuple[Server, ScheduleMessages]]]:
    """A function that starts a node which is killed at a point, and returns it with the same schedule."""
    with ExitStack() as stack:

        def start(point: str = "") -> tuple[Server, ScheduleMessages]:
            node = nodes(point)
            remote = stack.enter_context(strandline.connect(node.url, timeout=30))
            return node, remote.schedule(messages.name)

        yield start


@pytest.fixture
def subscribe() -> Iterator[Callable[[ScheduleMessages, int], LeaseFeed]]:
    """A function that begins a push session of the consumer `ada`."""
    with ExitStack() as stack:

        def begin(messages: ScheduleMessages, lease_ms: int) -> LeaseFeed:
            feed = messages.subscribe("ada", lease_ms, 1)
            stack.callback(feed.close)
            return feed

        yield begin


def add(messages: ScheduleMessages, name: str) -> None:
    raise_for_failed(messages.create([Message(name, id=name)]))


def act(lease: Lease, in_ms: int = 0) -> LeaseAct:
    one = lease.message
    return LeaseAct(one.id, one.consumer or "", one.version, Moment(in_ms, relative=True))


def only_b_is_left(messages: ScheduleMessages) -> None:
    """Other consumers get what is created now, but not the message `a`."""
    add(messages, "b")
    assert [lease.message.id for lease in messages.pull("bob", MINUTE, 10, MINUTE)] == ["b"]


def begun_by_bob_after(messages: ScheduleMessages, first: StoredMessage) -> Lease:
    """Another consumer begins with the message, and not before the lease of the first one has ended."""
    (second,) = messages.pull("bob", MINUTE, 1, MINUTE)
    assert (second.message.id, second.message.delivery_count) == ("a", first.delivery_count + 1)
    assert second.message.at_ms - MINUTE >= first.at_ms
    return second


def the_second_consumer_wins(messages: ScheduleMessages, first: Lease, second: Lease) -> None:
    """What the first consumer asks for is refused, and the message is deleted by the second one."""
    for refused in (messages.extend([act(first, MINUTE)]), messages.delete([act(first)])):
        assert refused[0].code == "not_holder"
    assert messages.delete([act(second)])[0].status == "ok"
    only_b_is_left(messages)


# -- the broker fails


def test_before_the_lease__once(messages, failing):
    """The consumer knows of the message and asks for the lease: the broker is down, and nobody has begun."""
    node, broken = failing()
    seen = broken.get("a")
    node.kill()
    with pytest.raises(BROKEN):
        broken.lease("ada", MINUTE, [ChosenMessage("a", seen.version)])
    assert messages.get("a") == seen
    (lease,) = messages.lease("ada", MINUTE, [ChosenMessage("a", seen.version)])
    assert lease.message.delivery_count == 1
    assert messages.delete([act(lease)])[0].status == "ok"
    only_b_is_left(messages)


def test_between_the_look_for_due_messages_and_the_lease__once(messages, failing, subscribe):
    """The broker has chosen the message for a session. No lease is stored, so nobody has to wait for its end."""
    _, broken = failing("schedule.due:kill")
    seen = messages.get("a")
    with pytest.raises(BROKEN):
        subscribe(broken, MINUTE).next(DEADLINE_S)
    assert messages.get("a") == seen
    feed = subscribe(messages, MINUTE)
    lease = feed.next(DEADLINE_S)
    assert lease.message.delivery_count == 1
    assert feed.delete([act(lease)])[0].status == "ok"
    feed.close()  # otherwise it gets what is created next
    only_b_is_left(messages)


def test_between_the_lease_and_its_delivery__once(messages, failing, subscribe):
    """The lease is stored but did not reach the consumer, which gets it back when it connects again."""
    _, broken = failing("schedule.leased:kill")
    with pytest.raises(BROKEN):
        subscribe(broken, MINUTE).next(DEADLINE_S)
    assert messages.get("a").consumer == "ada"
    only_b_is_left(messages)
    lease = subscribe(messages, MINUTE).next(DEADLINE_S)
    assert (lease.message.id, lease.message.delivery_count) == ("a", 2)
    assert messages.delete([act(lease)])[0].status == "ok"


def test_between_the_lease_of_a_pull_and_its_answer__once(messages, failing):
    """A pull does not get leases back: the message is delivered again when the lease has ended."""
    _, broken = failing("schedule.leased:kill")
    with pytest.raises(BROKEN):
        broken.pull("ada", LEASE_MS, 1, MINUTE)
    stored = messages.get("a")
    assert (stored.consumer, stored.delivery_count) == ("ada", 1)
    second = begun_by_bob_after(messages, stored)
    assert messages.delete([act(second)])[0].status == "ok"
    only_b_is_left(messages)


def test_at_the_extension__twice(messages, failing, subscribe):
    """The consumer cannot extend its lease and has to stop in the middle of its work."""
    node, broken = failing()
    feed = subscribe(broken, LEASE_MS)
    first = feed.next(DEADLINE_S)
    node.kill()
    with pytest.raises(BROKEN):
        feed.extend([act(first, LEASE_MS)])
    second = begun_by_bob_after(messages, first.message)
    the_second_consumer_wins(messages, first, second)


def test_at_the_answer_to_the_extension__twice(messages, failing, subscribe):
    """The extension is stored, and the lease lasts until its new end, although the consumer does not know it."""
    _, broken = failing(SECOND_CHANGE)
    feed = subscribe(broken, LEASE_MS)
    first = feed.next(DEADLINE_S)
    with pytest.raises(BROKEN):
        feed.extend([act(first, LEASE_MS)])
    extended = messages.get("a")
    assert extended.at_ms > first.message.at_ms
    second = begun_by_bob_after(messages, extended)
    the_second_consumer_wins(messages, first, second)


def test_at_the_deletion__twice(messages, failing, subscribe):
    """The consumer has finished, but no broker answers before its lease ends."""
    node, broken = failing()
    feed = subscribe(broken, LEASE_MS)
    first = feed.next(DEADLINE_S)
    node.kill()
    with pytest.raises(BROKEN):
        feed.delete([act(first)])
    second = begun_by_bob_after(messages, first.message)
    the_second_consumer_wins(messages, first, second)


@pytest.mark.parametrize("nodes", ["sqlite"], indirect=True)
def test_in_the_transaction_of_the_deletion__twice(messages, failing, subscribe):
    """The deletion is not committed, so it has not happened. On PostgreSQL it is one statement without steps."""
    _, broken = failing("schedule.changed:kill:3")  # a lease passes the point twice
    feed = subscribe(broken, LEASE_MS)
    first = feed.next(DEADLINE_S)
    with pytest.raises(BROKEN):
        feed.delete([act(first)])
    assert messages.get("a").version == first.message.version
    second = begun_by_bob_after(messages, first.message)
    the_second_consumer_wins(messages, first, second)


def test_at_the_answer_to_the_deletion__once(messages, failing, subscribe):
    """Nobody else gets a lease, and the consumer may repeat the deletion."""
    _, broken = failing(SECOND_CHANGE)
    feed = subscribe(broken, MINUTE)
    first = feed.next(DEADLINE_S)
    with pytest.raises(BROKEN):
        feed.delete([act(first)])
    only_b_is_left(messages)
    for _ in range(2):
        (repeated,) = messages.delete([act(first)])
        assert (repeated.status, repeated.code) == ("ok", "already_deleted")


# -- the consumer fails


@pytest.fixture
def consumer(healthy: Server, messages: ScheduleMessages) -> Iterator[Peer]:
    opened = Peer(CONSUMER, healthy.url, messages.name)
    yield opened
    opened.kill()


def test_during_the_lease_and_returns_in_time__once(messages, consumer):
    """A consumer that restarts with the same name gets its lease back and resumes."""
    consumer.send("process", "ada", MINUTE, "test.begun:kill")
    first = consumer.receive()
    assert consumer.ended() == 9
    only_b_is_left(messages)
    with messages.consume("ada", lease_ms=MINUTE) as leases:
        again = next(leases)
        assert (again.id, again.expires_at_ms, again.delivery_count) == ("a", first.at_ms, 2)
        assert messages.delete([LeaseAct("a", "ada", first.version)])[0].code == "stale_version"
        again.delete()


@pytest.mark.parametrize("point", ["test.begun", "test.finished"])
def test_before_the_extension_or_the_deletion_is_sent__twice(messages, consumer, point):
    """The consumer has begun or finished its work, and the broker does not hear of it: another one begins."""
    consumer.send("process", "ada", LEASE_MS, f"{point}:kill")
    first = consumer.receive()
    assert consumer.ended() == 9
    stored = messages.get("a")
    assert (stored.at_ms > first.at_ms) == (point == "test.finished")
    second = begun_by_bob_after(messages, stored)
    assert messages.delete([act(second)])[0].status == "ok"
    only_b_is_left(messages)


@pytest.mark.parametrize("point", ["test.begun", "test.finished"])
def test_the_extension_or_the_deletion_comes_too_late__twice(messages, consumer, point):
    """The consumer was paused. Its lease has ended, it is told so, and it has to stop."""
    consumer.send("process", "ada", LEASE_MS, f"{point}:stop")
    consumer.receive()
    consumer.wait_until_stopped()
    second = begun_by_bob_after(messages, messages.get("a"))
    consumer.wake()
    with pytest.raises(LeaseLost):
        consumer.receive()
    assert messages.delete([act(second)])[0].status == "ok"
    only_b_is_left(messages)


def test_nothing_fails__once(messages, consumer):
    consumer.send("process", "ada", MINUTE, "")
    assert consumer.receive().id == "a"
    assert consumer.receive() == "done"
    only_b_is_left(messages)
