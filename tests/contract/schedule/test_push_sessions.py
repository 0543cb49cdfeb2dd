"""Push sessions: credit, leases that are handed back, fencing, and what is given back at the end."""

from __future__ import annotations

import pytest
from broker_place import MINUTE, Listener, act, add, held, names

from services import until
from strandline.errors import Invalid, LeaseLost, NotFound, Unavailable
from strandline.schedule.model import ChosenMessage, Schedule


def take(feed, count):
    """The next leases of a feed."""
    found = [feed.next(MINUTE) for _ in range(count)]
    assert None not in found
    return found


def test_messages_are_pushed_when_they_are_due(nodes):
    messages = nodes.messages()
    feed = messages.subscribe("ada", 30_000, 10)
    add(messages, "b", in_ms=200)
    add(messages, "a")
    first, second = take(feed, 2)
    assert names([first, second]) == ["a", "b"]
    assert second.message.at_ms - 30_000 >= second.message.due_ms
    assert first.message.at_ms > feed.now_ms()
    assert feed.next(0) is None


@pytest.mark.parametrize("how", ["delete", "release", "expiry", "credit", "delete elsewhere"])
def test_a_place_that_becomes_free_is_filled(nodes, how):
    """`credit` is how many leases a consumer holds at most."""
    messages, other = nodes.messages(), nodes.messages()
    add(messages, "a", in_ms=-1000)
    add(messages, "b")
    listener = Listener()
    session = messages.open_push("ada", 700 if how == "expiry" else MINUTE, 1, listener)
    (first,) = until(lambda: listener.leases, "the first lease")
    session.sent([first])
    assert held(messages, "ada") == ["a"]
    if how == "delete":
        assert messages.delete([act(first)])[0].status == "ok"
    elif how == "release":
        assert messages.release([act(first, MINUTE)])[0].status == "ok"
    elif how == "credit":
        session.set_credit(2)
    elif how == "delete elsewhere":
        assert other.delete([act(first)])[0].status == "ok"
        assert messages.delete([act(first)])[0].code == "already_deleted"
    until(lambda: "b" in names(listener.leases), "the second lease")


@pytest.mark.parametrize("how", ["delete", "release"])
def test_a_place_that_becomes_free_through_another_node_is_filled(nodes, how):
    """The consumer may send a request to any node. The node of the session looks every second."""
    other = nodes.node()
    other.schedules.start()
    messages, far = nodes.messages(), other.schedule("s")
    add(messages, "a", "b", in_ms=-1000)
    add(messages, "c")
    feed = messages.subscribe("ada", MINUTE, 2)
    first, second = take(feed, 2)
    assert feed.next(1.5) is None, "leases that are held are not dropped"
    (answer,) = getattr(far, how)([act(first, in_ms=MINUTE)])
    assert answer.status == "ok"
    assert names(take(feed, 1)) == ["c"]
    assert held(messages, "ada") == [second.message.id, "c"]


def test_an_extended_lease_is_not_pushed_again(nodes):
    messages = nodes.messages()
    add(messages, "a")
    feed = messages.subscribe("ada", 500, 1)
    (lease,) = take(feed, 1)
    extended = feed.extend([act(lease, MINUTE)])[0]
    add(messages, "b")
    assert names(messages.pull("bob", MINUTE, 1, MINUTE)) == ["b"]
    assert feed.next(0.6) is None
    assert messages.get("a").version == extended.version


def test_ignored_messages_do_not_block_newer_ones(nodes):
    """Neither for another consumer nor for a consumer of another node."""
    messages, other = nodes.messages(), nodes.messages()
    ignoring = Listener()
    messages.open_push("ada", MINUTE, 3, ignoring)
    add(messages, "x", "y", "z")
    until(lambda: len(ignoring.leases) == 3, "the leases that are ignored")
    feeds = messages.subscribe("bob", MINUTE, 100), other.subscribe("cid", MINUTE, 100)
    add(messages, *(f"m{n:02}" for n in range(60)))
    found = set()
    until(lambda: found.update(names([x for f in feeds if (x := f.next(0))])) or len(found) == 60, "the others")
    assert sorted(names(ignoring.leases)) == ["x", "y", "z"]


def test_a_returning_consumer_first_gets_its_active_leases_back(nodes):
    """With a new version, so that the old process is fenced; each counts as a delivery."""
    messages, other = nodes.messages(), nodes.messages()
    add(messages, "a", "b")
    old = take(messages.subscribe("ada", MINUTE, 2), 2)
    add(messages, "c", in_ms=-1000)
    feed = other.subscribe("ada", MINUTE, 10)
    found = take(feed, 3)
    assert sorted(names(found[:2])) == ["a", "b"]
    assert names(found[2:]) == ["c"]
    assert {one.message.delivery_count for one in found[:2]} == {2}
    assert {messages.delete([act(one)])[0].code for one in old} == {"stale_version"}
    assert {feed.delete([act(one)])[0].status for one in found} == {"ok"}


def test_leases_that_are_handed_back_count_against_the_credit(nodes):
    messages, other = nodes.messages(), nodes.messages()
    add(messages, *"abcd", in_ms=-1000)
    take(messages.subscribe("ada", MINUTE, 4), 4)
    add(messages, "new")
    feed = other.subscribe("ada", MINUTE, 2)
    found = take(feed, 2)
    assert feed.next(0.1) is None
    while len(found) < 5:
        feed.delete([act(found[-1])])
        found += take(feed, 1)
    assert sorted(names(found[:4])) == ["a", "b", "c", "d"]
    assert names(found[4:]) == ["new"]


def test_many_leases_are_handed_back(nodes):
    messages, other = nodes.messages(), nodes.messages()
    ids = [f"m{n:03}" for n in range(100)]
    add(messages, *ids)
    take(messages.subscribe("ada", MINUTE, 100), 100)
    assert sorted(names(take(other.subscribe("ada", MINUTE, 1000), 100))) == ids


def test_a_message_at_its_last_attempt_is_not_handed_back_and_does_not_block_others(nodes):
    node = nodes.node()
    node.schedules.put(Schedule("s", max_attempts=2))
    messages, other = node.schedule("s"), nodes.messages()
    add(messages, "a")
    (lease,) = messages.pull("ada", MINUTE, 1, MINUTE)
    messages.release([act(lease, 10)])
    assert names(messages.pull("ada", MINUTE, 1, MINUTE)) == ["a"]
    add(messages, "b")
    assert names(messages.pull("ada", MINUTE, 1, MINUTE)) == ["b"]
    feed = other.subscribe("ada", MINUTE, 1)
    assert names(take(feed, 1)) == ["b"]
    assert messages.get("a").delivery_count == 2


@pytest.mark.parametrize("same_node", [True, False])
def test_a_second_session_fences_the_first(nodes, same_node):
    """Also if nothing is due."""
    messages = nodes.messages()
    first = messages.subscribe("ada", MINUTE, 10)
    assert first.next(0) is None
    second = (messages if same_node else nodes.messages()).subscribe("ada", MINUTE, 10)
    with pytest.raises(LeaseLost):
        first.next(MINUTE)
    add(messages, "a")
    assert names(take(second, 1)) == ["a"]
    first.close()
    add(messages, "b")
    assert names(take(second, 1)) == ["b"]


def test_leases_that_were_never_sent_are_given_back(nodes):
    """They do not count as deliveries."""
    messages, other = nodes.messages(), nodes.messages()
    add(messages, "a", in_ms=-1000)
    add(messages, "b")
    listener = Listener()
    session = messages.open_push("ada", MINUTE, 10, listener)
    until(lambda: len(listener.leases) == 2, "both leases")
    session.sent(listener.leases[:1])
    session.close()
    assert held(messages, "ada") == ["a"]
    (lease,) = other.pull("bob", MINUTE, 10, MINUTE)
    assert (lease.message.id, lease.message.delivery_count) == ("b", 1)


def test_a_lease_of_an_earlier_session_is_not_given_back(nodes):
    """It was handed back but never sent. Its consumer has it from the earlier session, and may be at work."""
    messages = nodes.messages()
    add(messages, "a")
    take(messages.subscribe("ada", MINUTE, 1), 1)
    listener = Listener()
    session = messages.open_push("ada", MINUTE, 1, listener)
    until(lambda: listener.leases, "the lease that is handed back")
    session.close()
    add(messages, "b")
    assert names(messages.pull("bob", MINUTE, 10, MINUTE)) == ["b"]
    assert held(messages, "ada") == ["a"]
    assert names(take(messages.subscribe("ada", MINUTE, 1), 1)) == ["a"]


def test_a_closed_feed_gives_back_what_was_not_taken(nodes):
    messages = nodes.messages()
    add(messages, "a", in_ms=-1000)
    add(messages, "b")
    feed = messages.subscribe("ada", MINUTE, 10)
    take(feed, 1)
    until(lambda: held(messages, "ada") == ["a", "b"], "both leases")
    feed.close()
    feed.close()
    assert held(messages, "ada") == ["a"]
    with pytest.raises(Unavailable):
        feed.next(0)


def test_closing_a_node_gives_back_what_was_not_taken(nodes):
    node, other = nodes.node(), nodes.messages()
    add(other, "a")
    feed = node.schedule("s").subscribe("ada", MINUTE, 10)
    until(lambda: held(other, "ada"), "the lease")
    node.close()
    assert held(other, "ada") == []
    with pytest.raises(Unavailable):
        feed.next(0)


def test_what_waits_to_be_sent_is_bounded_in_bytes(nodes):
    """The rest goes to others; when it was sent, the session gets more."""
    messages = nodes.messages()
    ids = [f"m{n:02}" for n in range(40)]
    for name in ids:
        add(messages, name, body=b"1" * 300_000)
    slow = Listener()
    session = messages.open_push("ada", MINUTE, 1000, slow)
    found = []
    until(lambda: found.extend(messages.pull("bob", MINUTE, 10)) or len(found) + len(slow.leases) == 40, "all")
    assert len(slow.leases) <= 18
    session.sent(slow.leases)
    before = len(slow.leases)
    add(messages, "more")
    until(lambda: len(slow.leases) > before, "another lease")


class BrokenListener(Listener):
    def leased(self, leases):
        super().leased(leases)
        raise RuntimeError("as the test wants it")


def test_a_listener_that_fails_does_not_affect_others(nodes):
    messages = nodes.messages()
    broken, healthy = BrokenListener(), Listener()
    messages.open_push("ada", MINUTE, 5, broken)
    messages.open_push("bob", MINUTE, 5, healthy)
    add(messages, *(f"m{n}" for n in range(10)))
    until(lambda: len(broken.leases) == len(healthy.leases) == 5, "all leases")


def test_the_deletion_of_a_schedule_ends_its_sessions(nodes):
    here, there = nodes.node(), nodes.node()
    feeds = [node.schedule("s").subscribe(f"c{n}", MINUTE, 1) for n, node in enumerate((here, there))]
    here.schedules.delete("s")
    for feed in feeds:
        with pytest.raises(LeaseLost):
            feed.next(MINUTE)
        feed.close()


def test_sessions_of_unknown_schedules_and_with_bad_credit(nodes):
    node = nodes.node()
    with pytest.raises(NotFound):
        node.schedule("nothing").subscribe("ada", MINUTE, 1)
    for credit in (-1, 10_001):
        with pytest.raises(Invalid):
            node.schedule("s").subscribe("ada", MINUTE, credit)


def test_a_session_without_credit_gets_nothing_until_it_has_some(nodes):
    messages = nodes.messages()
    add(messages, "a")
    listener = Listener()
    session = messages.open_push("ada", MINUTE, 0, listener)
    add(messages, "b")
    assert sorted(names(messages.pull("bob", MINUTE, 2, MINUTE))) == ["a", "b"]
    session.set_credit(1)
    add(messages, "c")
    until(lambda: names(listener.leases) == ["c"], "the lease")


def test_several_consumers_on_several_nodes_share_the_work(nodes):
    """Every message is delivered once if it is deleted in time."""
    rooms = [nodes.messages() for _ in range(3)]
    feeds = [room.subscribe(f"c{n}-{m}", MINUTE, 20) for n, room in enumerate(rooms) for m in range(2)]
    ids = sorted(f"m{n:03}" for n in range(300))
    for number in range(0, 300, 20):
        add(rooms[number % 3], *ids[number : number + 20], in_ms=number)
    found = []

    def work():
        for feed in feeds:
            if lease := feed.next(0):
                found.append(lease.message.id)
                assert feed.delete([act(lease)])[0].status == "ok"
        return len(found) >= 300

    until(work, "all messages")
    assert sorted(found) == ids
    assert {held(rooms[0], f"c{n}-{m}") == [] for n in range(3) for m in range(2)} == {True}


def test_a_chosen_lease_counts_in_no_session(nodes):
    messages = nodes.messages()
    add(messages, "a")
    assert messages.lease("ada", MINUTE, [ChosenMessage("a")])[0].message.consumer == "ada"
    feed = messages.subscribe("ada", MINUTE, 1)
    assert names(take(feed, 1)) == ["a"], "a new session gets it handed back"
