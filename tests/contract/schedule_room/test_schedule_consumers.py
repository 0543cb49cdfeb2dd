"""Consumers as iterators and as workers."""

from __future__ import annotations

import _thread
import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest

import strandline
from services import DEADLINE_S, until
from strandline import Message
from strandline.errors import BadTimestamp, Conflict, LeaseLost, NotFound, Unavailable
from strandline.schedule import GiveUp, ListQuery, OwnerAct, Retry, Schedule, raise_for_failed
from strandline.schedule.model import NewMessage
from strandline.schedule.rules import MAX_MS
from strandline.schedule.worker import MessageWorker

QUICK = Retry(first_ms=10, longest_ms=50)


def put(messages, *new: NewMessage) -> None:
    raise_for_failed(messages.create(new))


def is_empty(messages) -> bool:
    return messages.counts(0, MAX_MS).total == 0


@contextmanager
def working(messages, handler, consumer: str = "ada", **options):
    """A worker in another thread. Its error, if any, is raised at the end."""
    stop, failures = threading.Event(), []

    def run() -> None:
        try:
            messages.work(handler, consumer, stop=stop, **options)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


# -- the iterator


def test_due_messages_are_iterated_over(messages):
    """The example of the documentation: consume, look at the body, delete. The loop closes the session."""
    put(messages, *(Message({"n": n}, id=f"m{n}") for n in range(5)))
    seen = []
    for lease in messages.consume("worker-1", lease_ms=30_000):
        seen.append((lease.id, lease.body, lease.delivery_count, lease.group))
        assert 0 < lease.remaining_ms < 31_000  # an estimate
        lease.delete()
        if len(seen) == 5:
            break
    assert sorted(seen) == [(f"m{n}", {"n": n}, 1, "default") for n in range(5)]
    assert is_empty(messages)


def test_no_message_comes_early(messages):
    """A lease starts at the moment of its message or later, by the clock of the database."""
    put(messages, *(Message(n, in_ms=20 * n) for n in range(10)))
    with messages.consume("ada", lease_ms=10_000, credit=10) as leases:
        for n in range(10):
            lease = next(leases)
            assert lease.body == n
            assert lease.expires_at_ms - 10_000 >= lease.due_at_ms
            lease.delete()


def test_a_receive_without_messages_returns_nothing(messages):
    """After its timeout, and after the consumer was closed."""
    leases = messages.consume("ada")
    assert leases.receive(timeout=0) is leases.receive(timeout=0.05) is None
    leases.close()
    leases.close()
    assert leases.receive() is None
    assert [*leases] == []


def test_a_lease_is_released_into_the_future_and_comes_back(messages):
    """Every delivery is counted. Without a moment it comes back at once."""
    put(messages, Message("x", id="one"))
    with messages.consume("ada") as leases:
        next(leases).release(in_ms=50)
        second = next(leases)
        assert (second.id, second.delivery_count) == ("one", 2)
        second.release()
        third = next(leases)
        assert third.delivery_count == 3
        third.release(at=time.time_ns() // 1_000_000 + 3_600_000)
        assert third.settled
        assert third.remaining_ms == 0
    assert messages.get("one").consumer is None
    assert messages.counts(0, MAX_MS).waiting == 1


def test_a_lease_can_be_extended_again_and_again(messages):
    """Each time it gets a new end and a new version, and it can still be deleted."""
    put(messages, Message({}, id="one"))
    with messages.consume("ada", lease_ms=20_000) as leases:
        lease = next(leases)
        versions = [lease.version]
        for moment in ({}, {"in_ms": 60_000}, {"at": lease.expires_at_ms + 70_000}):
            lease.extend(**moment)
            versions.append(lease.version)
            assert messages.get("one").at_ms == lease.expires_at_ms
        assert versions == sorted(set(versions))
        with pytest.raises(BadTimestamp):
            lease.extend(in_ms=10**9)
        lease.delete()
        lease.delete()
        with pytest.raises(LeaseLost):
            lease.extend()


def test_a_lease_that_has_ended_is_lost(messages):
    """After its end another consumer gets the message; the first one cannot change it any more."""
    put(messages, Message({}, id="one"))
    with messages.consume("ada", lease_ms=50) as ada:
        lease = next(ada)
        ada.close()
        with messages.consume("bob") as bob:
            again = next(bob)
            assert (again.id, lease.remaining_ms) == ("one", 0)
            for act in (lease.extend, lease.release, lease.delete):
                with pytest.raises(LeaseLost, match="'one'"):
                    act()
            again.delete()


def test_leases_that_expired_while_they_waited_are_skipped(messages):
    """However many: the program was busy for longer than they last."""
    put(messages, *(Message({}) for _ in range(1_500)))
    with messages.consume("ada", lease_ms=2_000, credit=1_500) as leases:
        until(lambda: messages.counts(0, MAX_MS).processing >= 1_200, "leases that wait")
        time.sleep(2)
        assert next(leases).remaining_ms > 0


def test_a_lease_can_be_settled_after_its_consumer_was_closed(messages):
    """The loop has ended, but the work has not."""
    put(messages, Message({}, id="one"))
    with messages.consume("ada") as leases:
        lease = next(leases)
    lease.extend()
    lease.delete()
    assert is_empty(messages)


def test_an_abandoned_message_comes_back_to_the_same_consumer(messages):
    """A lease that is neither deleted nor released expires."""
    put(messages, Message({}, id="one"))
    with messages.consume("ada", lease_ms=1_000) as leases:
        first = next(leases)
        second = next(leases)
        assert (second.id, second.delivery_count) == ("one", 2)
        with pytest.raises(LeaseLost):
            first.delete()


def test_credit_limits_what_a_consumer_holds(messages):
    """Other messages wait until a place is free, and go to other consumers."""
    put(messages, *(Message(n) for n in range(4)))
    with messages.consume("ada", credit=2) as ada:
        held = [next(ada), next(ada)]
        assert ada.receive(timeout=0.1) is None
        with messages.consume("bob", credit=2) as bob:
            held += [next(bob), next(bob)]
        for lease in held:
            lease.delete()
    assert sorted(lease.body for lease in held) == [0, 1, 2, 3]
    assert is_empty(messages)


def test_what_a_consumer_did_not_ask_for_is_not_delivered(rooms, make):
    """With a credit of 1, the next message is not leased until somebody waits for it: a delivery would count."""
    messages = make(max_attempts=1)
    put(messages, *(Message(n) for n in range(3)))
    seen = []
    for _ in range(3):
        with messages.consume("ada") as leases:
            lease = leases.receive(timeout=20)
            assert lease is not None, "the message is dead"
            seen.append(lease.body)
            lease.delete()
    assert sorted(seen) == [0, 1, 2]
    assert is_empty(rooms.schedule(f"{messages.name}.dead"))


def test_an_expired_lease_waits_for_a_consumer_that_waits(messages):
    """A program that hangs does not use up the deliveries of the message that it holds."""
    put(messages, Message({}, id="one"))
    with messages.consume("ada", lease_ms=200) as ada:
        assert next(ada).delivery_count == 1
        until(lambda: messages.counts(0, MAX_MS).available == 1, "the end of the lease")
        with messages.consume("bob") as bob:
            again = next(bob)
            assert (again.id, again.delivery_count) == ("one", 2)
            again.delete()


def test_two_threads_can_wait_on_one_consumer(messages):
    """A thread that waits gets the place that another one frees."""
    put(messages, Message(1), Message(2))
    with messages.consume("ada") as leases:
        first, rest = next(leases), []
        waiting = threading.Thread(target=lambda: rest.append(next(leases)))
        waiting.start()
        first.delete()
        waiting.join(DEADLINE_S)
        assert {first.body, rest[0].body} == {1, 2}
        rest[0].delete()
    assert is_empty(messages)


def test_a_restarted_consumer_gets_its_leases_back(messages):
    """They have new versions, so that the old process is fenced, and count as deliveries."""
    put(messages, Message({}, id="one"))
    first = messages.consume("ada", lease_ms=60_000)
    lease = next(first)
    first.close()
    with messages.consume("ada", lease_ms=60_000) as second:
        again = next(second)
        assert (again.id, again.delivery_count, again.version > lease.version) == ("one", 2, True)
        with pytest.raises(LeaseLost):
            lease.delete()
        again.delete()


def test_a_second_session_fences_the_first(messages):
    """The older consumer gets LeaseLost and does not take the session back."""
    first = messages.consume("ada")
    with messages.consume("ada") as second:
        with pytest.raises(LeaseLost, match="schedule was deleted"):
            next(first)
        with pytest.raises(LeaseLost):
            next(first)
        put(messages, Message({}))
        next(second).delete()
    first.close()


def test_a_consumer_needs_a_schedule_and_a_sane_request(rooms, messages):
    """Errors of the first connection are raised at once."""
    with pytest.raises(NotFound):
        rooms.schedule("nothing").consume("ada")
    with pytest.raises(BadTimestamp):
        messages.consume("ada", lease_ms=1)
    with pytest.raises(Conflict):
        rooms.schedule(f"{messages.name}.dead").consume("ada")


# -- the worker


def test_a_worker_handles_every_message_once(messages):
    """Several threads share the messages; each message is deleted when its handler returns."""
    put(messages, *(Message(n) for n in range(50)))
    seen = Counter()
    with working(messages, lambda lease: seen.update([lease.body]), threads=4):
        until(lambda: is_empty(messages), "an empty schedule")
    assert seen == Counter(range(50))


def test_a_worker_extends_the_lease_of_a_long_job(messages):
    """The handler runs several times as long as a lease, and nobody else gets the message."""
    put(messages, Message({}, id="long"))
    done, ends = [], []

    def handler(lease):
        ends.append(lease.expires_at_ms)
        until(lambda: lease.expires_at_ms > ends[0] + 3_000, "some extensions")
        done.append(lease.delivery_count)

    with working(messages, handler, lease_ms=600), working(messages, handler, "bob", lease_ms=600):
        until(lambda: is_empty(messages), "an empty schedule")
    assert done == [1]


def test_a_failed_message_is_tried_again_later(messages):
    """After each exception the message is released into the future."""
    put(messages, Message({}, id="flaky"))
    deliveries, dues = [], []

    def handler(lease):
        deliveries.append(lease.delivery_count)
        dues.append(lease.due_at_ms)
        if len(deliveries) < 4:
            raise RuntimeError("not yet")

    with working(messages, handler, retry=Retry(first_ms=20, jitter=0)):
        until(lambda: is_empty(messages), "an empty schedule")
    assert deliveries == [1, 2, 3, 4]
    assert all(
        later - earlier >= pause for earlier, later, pause in zip(dues, dues[1:], (20, 40, 80), strict=False)
    )


def test_a_handler_may_settle_the_message_itself(messages):
    """A message that the handler released is not deleted."""
    put(messages, Message({}, id="later"), Message({}, id="now"))
    seen = []

    def handler(lease):
        seen.append(lease.id)
        if lease.id == "later":
            lease.release(in_ms=3_600_000)
        else:
            lease.delete()

    with working(messages, handler):
        until(lambda: len(seen) == 2, "both messages")
    assert [one.id for one in messages.list(ListQuery())] == ["later"]


def test_a_message_that_is_given_up_is_dead(rooms, make):
    """The handler raises GiveUp once; the deliveries that are left are used up without it."""
    messages = make(max_attempts=5)
    dead = rooms.schedule(f"{messages.name}.dead")
    put(messages, Message({}, id="poison"))
    calls = []

    def handler(lease):
        calls.append(lease.delivery_count)
        raise GiveUp("no such user")

    with working(messages, handler):
        until(lambda: dead.counts(0, MAX_MS).total == 1, "the dead message")
        assert calls == [1]
        raise_for_failed(dead.put_back([OwnerAct("poison", "default")]))
        until(lambda: len(calls) == 2, "the message that was put back")
        until(lambda: dead.counts(0, MAX_MS).total == 1, "the dead message")
    assert calls == [1, 1]


def test_a_message_is_dead_after_its_attempts(rooms, make):
    """A worker that knows `max_attempts` does not wait for another pause before the message is dead."""
    messages = make(max_attempts=3)
    dead = rooms.schedule(f"{messages.name}.dead")
    put(messages, Message({}, id="bad"))
    calls = []

    def handler(lease):
        calls.append(lease.delivery_count)
        raise RuntimeError("again")

    retry = Retry(first_ms=10, factor=10_000, longest_ms=20, max_attempts=3)
    with working(messages, handler, retry=retry):
        until(lambda: dead.counts(0, MAX_MS).total == 1, "the dead message")
    assert calls == [1, 2, 3]


def test_a_worker_finishes_what_it_has_begun(messages):
    """After `stop` no handler is started, and the running one is not interrupted."""
    put(messages, Message(1), Message(2))
    begun, go_on, done, stop = threading.Event(), threading.Event(), [], threading.Event()

    def handler(lease):
        begun.set()
        go_on.wait(DEADLINE_S)
        done.append(lease.body)

    worker = threading.Thread(target=lambda: messages.work(handler, "ada", stop=stop))
    worker.start()
    begun.wait(DEADLINE_S)
    stop.set()
    go_on.set()
    worker.join(DEADLINE_S)
    assert len(done) == 1
    assert messages.counts(0, MAX_MS).total == 1


def test_ctrl_c_ends_a_worker(messages):
    """The running handler is finished first, and its message is deleted."""
    put(messages, Message(1), Message(2))
    done = []

    def handler(lease):
        _thread.interrupt_main()
        done.append(lease.body)

    with pytest.raises(KeyboardInterrupt):
        messages.work(handler, "ada")
    assert len(done) >= 1
    assert messages.counts(0, MAX_MS).total == 2 - len(done)


def test_a_worker_ends_when_its_consumer_is_closed(messages):
    """So does one that Ctrl-C interrupts while it starts: no thread goes on asking a closed consumer."""
    with messages.consume("ada") as leases:
        worker = MessageWorker(leases, print, Retry(), 2, threading.Event())
        thread = threading.Thread(target=worker.run)
        thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_worker_of_a_closed_platform_stops_with_an_error(tmp_path):
    """It does not try to connect again."""
    with strandline.open(tmp_path) as platform:
        platform.schedules.create(Schedule("reminders"))
        ended = []

        def run() -> None:
            with pytest.raises(Unavailable, match="closed"):
                platform.schedule("reminders").work(print, "ada")
            ended.append(True)

        thread = threading.Thread(target=run)
        thread.start()
        put(platform.schedule("reminders"), Message({}))
        until(lambda: is_empty(platform.schedule("reminders")), "an empty schedule")
    thread.join(DEADLINE_S)
    assert ended == [True]


def test_a_fenced_worker_stops_with_an_error(messages):
    """Two workers with one name: the older one ends."""
    ended = []

    def run() -> None:
        with pytest.raises(LeaseLost) as caught:
            messages.work(print, "ada")
        ended.append(caught.value)

    older = threading.Thread(target=run)
    older.start()
    # The older one must have connected first: it handles a message.
    put(messages, Message({}))
    until(lambda: is_empty(messages), "an empty schedule")
    with working(messages, print):
        older.join(DEADLINE_S)
    assert len(ended) == 1


def test_handlers_that_lose_their_lease_do_no_harm(messages):
    """The message goes to the next consumer, and the worker goes on."""
    put(messages, Message({}, id="one"))
    calls = []

    def handler(lease):
        calls.append(lease.delivery_count)
        if len(calls) == 1:
            lease.release(in_ms=6)
            raise LeaseLost("the work was dropped")

    with working(messages, handler, retry=QUICK):
        until(lambda: is_empty(messages), "an empty schedule")
    assert calls == [1, 2]
