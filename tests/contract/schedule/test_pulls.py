"""Pulls: what they return, how they wait, and how they end."""

from __future__ import annotations

import threading
import time

import pytest
from broker_place import MINUTE, Answer, act, add, names, own

from services import until
from strandline.errors import BadTimestamp, Conflict, Invalid, NotFound, Unavailable
from strandline.schedule import delivery
from strandline.schedule.model import ChosenMessage, ListQuery, OwnerAct, Schedule


def test_due_messages_come_oldest_first(nodes):
    messages = nodes.messages()
    for number, name in enumerate("abc"):
        add(messages, name, in_ms=number - 1000)
    add(messages, "later", in_ms=MINUTE)
    assert names(messages.pull("ada", MINUTE, 2)) == ["a", "b"]
    assert names(messages.pull("ada", MINUTE, 2)) == ["c"]
    assert messages.pull("ada", MINUTE, 2) == []


def test_the_oldest_come_first_whoever_else_is_there(nodes):
    """The buckets are dealt to three consumers of this node. Nobody else can take what waits."""
    messages = nodes.messages()
    for consumer in ("ada", "bob", "cy"):
        assert messages.pull(consumer, MINUTE, 1) == []
    expected = [f"m{number:02}" for number in range(30)]
    for number, name in enumerate(expected):
        add(messages, name, in_ms=10 * number - 1000)
    assert names(messages.pull("bob", MINUTE, 20)) == expected[:20]
    assert names(messages.pull("cy", MINUTE, 1)) == expected[20:21]
    assert names(messages.pull("ada", MINUTE, 20)) == expected[21:]


def test_a_pull_that_does_not_wait_gets_what_is_reserved_for_others(nodes):
    """Only while other consumers could take a message at once: a pull is not empty while a message is due."""
    here, there = nodes.node().schedule("s"), nodes.node().schedule("s")
    consumers = ("ada", here), ("bob", here), ("cy", there)
    for consumer, messages in consumers:
        messages.pull(consumer, MINUTE, 1)
    for number in range(12):
        consumer, messages = consumers[number % 3]
        add(messages, f"m{number}")
        assert names(messages.pull(consumer, MINUTE, 1)) == [f"m{number}"]
        assert messages.pull(consumer, MINUTE, 1) == []


def test_a_pull_waits_until_a_message_is_due(nodes):
    """It is never early, and the lease begins when it is given."""
    messages = nodes.messages()
    add(messages, "a", in_ms=300)
    (lease,) = messages.pull("ada", 30_000, 10, MINUTE)
    assert lease.message.at_ms - 30_000 >= lease.message.due_ms
    assert messages.pull("ada", 30_000, 10, 10) == []


@pytest.mark.parametrize("news", ["notify", "look"])
def test_a_pull_learns_of_a_message_that_another_node_creates(nodes, news):
    messages = nodes.node(news=news).schedule("s")
    other = nodes.node(news=news).schedule("s")
    answer = Answer()
    messages.start_pull("ada", MINUTE, 10, MINUTE, answer)
    add(other, "a")
    until(lambda: answer.found, "the lease")
    assert names(answer.found[0]) == ["a"]


@pytest.mark.parametrize("how", ["create", "move", "release", "put back", "expiry"])
def test_a_pull_waits_for_every_way_in_which_a_message_becomes_available(nodes, how):
    node = nodes.node()
    messages = node.schedule("s")
    if how == "put back":
        node.schedules.put(Schedule("s", max_attempts=1))
    if how != "create":
        add(messages, "a", in_ms=MINUTE if how == "move" else 0)
    leases = messages.pull("bob", 300 if how == "expiry" else MINUTE, 1)
    if how == "put back":
        messages.release([act(leases[0], in_ms=10)])
        dead = node.schedule("s.dead")
        until(lambda: messages.pull("bob", MINUTE, 1) or [*dead.list(ListQuery())], "the death of the message")
    answer = Answer()
    messages.start_pull("ada", MINUTE, 1, MINUTE, answer)
    if how == "create":
        add(messages, "a")
    elif how == "move":
        messages.move([own("a")])
    elif how == "release":
        messages.release([act(leases[0], in_ms=20)])
    elif how == "put back":
        node.schedule("s.dead").put_back([OwnerAct("a", "shop")])
    until(lambda: answer.found, "the lease")
    assert names(answer.found[0]) == ["a"]


def test_waiting_pulls_hold_no_threads(nodes):
    """All of them share one statement."""
    messages = nodes.messages()
    messages.pull("first", MINUTE, 1)
    before = threading.active_count()
    answers = [Answer() for _ in range(100)]
    for number, answer in enumerate(answers):
        messages.start_pull(f"c{number}", MINUTE, 1, MINUTE, answer)
    assert threading.active_count() < before + 10
    add(messages, *(f"m{n}" for n in range(100)))
    until(lambda: all(answer.found for answer in answers), "the leases")
    assert sorted(name for answer in answers for name in names(answer.found[0])) == sorted(
        f"m{n}" for n in range(100)
    )


def test_a_pull_can_be_ended_early_and_is_answered_once(nodes):
    messages = nodes.messages()
    answer = Answer()
    end = messages.start_pull("ada", MINUTE, 1, MINUTE, answer)
    end()
    end()
    assert answer.found == [()]
    add(messages, "a")
    assert names(messages.pull("bob", MINUTE, 1, MINUTE)) == ["a"]
    assert answer.found == [()]


def test_pulls_of_one_consumer_with_different_lease_times(nodes):
    messages = nodes.messages()
    answers = [Answer() for _ in range(4)]
    for number, answer in enumerate(answers):
        messages.start_pull("ada", MINUTE + number % 2, 1, MINUTE, answer)
    add(messages, "a", "b", "c", "d")
    until(lambda: all(answer.found for answer in answers), "the leases")
    assert sorted(name for answer in answers for name in names(answer.found[0])) == ["a", "b", "c", "d"]


def test_a_pull_beside_a_push_session_of_the_same_consumer(nodes):
    """A pull that does not wait ends, although the session comes first."""
    messages = nodes.messages()
    feed = messages.subscribe("ada", MINUTE, 1)
    assert messages.pull("ada", MINUTE, 1) == []
    add(messages, "a")
    assert feed.next(MINUTE).message.id == "a"
    add(messages, "b")
    assert names(messages.pull("ada", MINUTE, 1, MINUTE)) == ["b"]


def test_the_deletion_of_a_schedule_ends_its_pulls(nodes):
    here, there = nodes.node(), nodes.node()
    answers = Answer(), Answer()
    for node, answer in zip((here, there), answers, strict=True):
        node.schedule("s").start_pull("ada", MINUTE, 1, MINUTE, answer)
    here.schedules.delete("s")
    until(lambda: all(answer.found for answer in answers), "the end of the pulls")
    assert [type(answer.found[0]) for answer in answers] == [NotFound, NotFound]
    with pytest.raises(NotFound):
        here.schedule("s").pull("ada", MINUTE, 1)


def test_a_schedule_that_is_created_again_can_be_consumed(nodes):
    node = nodes.node()
    messages = node.schedule("s")
    feed = messages.subscribe("ada", MINUTE, 1)
    node.schedules.delete("s")
    node.schedules.create(Schedule("s"))
    add(messages, "a")
    assert names(messages.pull("bob", MINUTE, 1, MINUTE)) == ["a"]
    feed.close()


def test_closing_a_node_ends_its_pulls(nodes):
    node = nodes.node()
    answer = Answer()
    node.schedule("s").start_pull("ada", MINUTE, 1, MINUTE, answer)
    node.close()
    assert [type(found) for found in answer.found] == [Unavailable]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("", MINUTE, 1, 0), Invalid),
        (("x" * 256, MINUTE, 1, 0), Invalid),
        (("ada", 5, 1, 0), BadTimestamp),
        (("ada", 300_001, 1, 0), BadTimestamp),
        (("ada", MINUTE, 0, 0), Invalid),
        (("ada", MINUTE, 1001, 0), Invalid),
        (("ada", MINUTE, 1, -1), Invalid),
        (("ada", MINUTE, 1, 60_001), Invalid),
    ],
)
def test_arguments_out_of_range(nodes, arguments, error):
    with pytest.raises(error):
        nodes.messages().pull(*arguments)


def test_a_longer_lease_is_accepted_when_the_settings_allow_it(nodes):
    """Also on a node that has seen the earlier settings."""
    node, other = nodes.node(), nodes.node()
    messages = node.schedule("s")
    messages.pull("ada", MINUTE, 1)
    other.schedules.put(Schedule("s", max_lease_ms=600_000))
    assert messages.pull("ada", 600_000, 1) == []
    assert messages.lease("ada", 600_000, [ChosenMessage("a")])[0].code == "not_found"


def test_a_longer_lease_is_refused_when_the_settings_forbid_it(nodes):
    """At once on the node that changed them, and on others after a second."""
    node, other = nodes.node(), nodes.node()
    messages, far = node.schedule("s"), other.schedule("s")
    for one in (messages, far):
        assert one.pull("ada", 2_000, 1) == []
    node.schedules.put(Schedule("s", max_lease_ms=1_000))
    with pytest.raises(BadTimestamp, match="at most 1000"):
        messages.pull("ada", 2_000, 1)
    time.sleep(1.1)
    with pytest.raises(BadTimestamp, match="at most 1000"):
        far.pull("ada", 2_000, 1)


def test_dead_messages_cannot_be_leased(nodes):
    dead = nodes.node().schedule("s.dead")
    for ask in (
        lambda: dead.pull("ada", MINUTE, 1),
        lambda: dead.subscribe("ada", MINUTE, 1),
        lambda: dead.lease("ada", MINUTE, [ChosenMessage("a")]),
    ):
        with pytest.raises(Conflict):
            ask()


@pytest.mark.parametrize("count", [3, 25, 700])
@pytest.mark.parametrize("wait_ms", [0, MINUTE])
def test_messages_that_become_dead_do_not_hide_the_others(nodes, count, wait_ms):
    """They use up neither the limit nor the time of a pull, however many they are."""
    node = nodes.node()
    node.schedules.put(Schedule("s", max_attempts=1))
    messages = node.schedule("s")
    add(messages, *(f"m{number}" for number in range(count)), in_ms=-1000)
    assert len(messages.pull("ada", 50, count)) == count
    add(messages, "fresh", in_ms=60)
    until(lambda: messages.counts(0, 2**50).available == count + 1, "the end of the leases")
    assert names(messages.pull("ada", MINUTE, 1, wait_ms)) == ["fresh"]
    assert len([*node.schedule("s.dead").list(ListQuery(limit=1000))]) == count


def test_a_consumer_counts_as_there_while_its_pull_waits(nodes, monkeypatch):
    """A pull may wait for longer than a consumer counts as there after its last call."""
    node = nodes.node()
    messages = node.schedule("s")
    sessions = node.schedules.parts.store.sessions
    attended: list[str] = []
    attend = sessions.attend
    monkeypatch.setattr(delivery, "_ATTEND_MS", 10)
    monkeypatch.setattr(sessions, "attend", lambda *given: (attended.append(given[1]), attend(*given)))
    cancel = messages.start_pull("ada", MINUTE, 1, MINUTE, Answer())
    until(lambda: attended.count("ada") >= 3, "the presence is renewed")
    cancel()
