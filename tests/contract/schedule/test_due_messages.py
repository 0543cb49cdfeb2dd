"""What a node needs to deliver: leases for several consumers, hand-back, fencing, and when to look again."""

from __future__ import annotations

import pytest
from schedule_place import CLOCK, MEGABYTE, NOON, act, created, everything, leased, made, message, own

from strandline.schedule.dealing import hash_of
from strandline.schedule.model import NextDue, Taker

SECOND = 1000


def ids(leases):
    return [lease.message.id for lease in leases]


def bucket(name, buckets=1024):
    return hash_of(name) % buckets


def test_the_oldest_messages_come_first_over_all_buckets(store):
    names = [f"m{n:02}" for n in range(50)]
    for number, name in enumerate(reversed(names)):
        created(store, name, at_ms=NOON - number)
    assert ids(store.due.lease("s", [everything(credit=20)], MEGABYTE).leases) == names[:20]
    assert ids(store.due.lease("s", [everything(credit=50)], MEGABYTE).leases) == names[20:]


@pytest.mark.parametrize(("late", "other"), [(4, False), (5, True), (6, True)])
def test_a_message_is_reserved_for_its_consumer_for_five_milliseconds(place, store, late, other):
    """After that, anybody with credit may take it."""
    created(store, "a")
    place.now_ms += late
    mine, not_mine = bucket("a"), (bucket("a") + 1) % 1024
    assert bool(store.due.lease("s", [Taker("bob", 9, 1000, not_mine, not_mine)], MEGABYTE).leases) == other
    if not other:
        assert ids(store.due.lease("s", [Taker("ada", 9, 1000, mine, mine)], MEGABYTE).leases) == ["a"]


def test_one_statement_serves_all_consumers_of_a_node(place, store):
    """Each gets its buckets; without credit, its messages go to the others after the grace."""
    names = [f"m{n:02}" for n in range(40)]
    created(store, *names)
    low = [name for name in names if bucket(name) < 512]
    takers = [Taker("ada", 40, 1000, 0, 511), Taker("bob", 5, 2000, 512, 1023)]
    first = store.due.lease("s", takers, MEGABYTE).leases
    of = {who: [one.message for one in first if one.message.consumer == who] for who in ("ada", "bob")}
    assert sorted(one.id for one in of["ada"]) == low
    assert len(of["bob"]) == 5
    assert {one.at_ms for one in of["ada"]} == {NOON + 1000}
    assert {one.at_ms for one in of["bob"]} == {NOON + 2000}
    place.now_ms += 5
    rest = store.due.lease("s", [Taker("ada", 40, 1000, 0, 511)], MEGABYTE).leases
    assert len(rest) == len(names) - len(low) - 5


@pytest.mark.parametrize("credit", [5, 40])
def test_a_consumer_of_this_node_that_takes_nothing_leaves_its_messages_to_the_others(place, store, credit):
    """They are taken by their age. Messages of other nodes count as younger; what is leased is in order anyway."""
    candidates = [f"m{n:03}" for n in range(400)]
    low = [name for name in candidates if bucket(name) < 512][:20]
    high = [name for name in candidates if bucket(name) >= 512][:20]
    names = [name for pair in zip(high, low, strict=True) for name in pair]
    for number, name in enumerate(names):
        created(store, name, at_ms=NOON - 100 + number)
    bob, ada = Taker("bob", credit, 1000, 0, 511), Taker("ada", 0, 0, 512, 1023)
    without = store.due.lease("s", [bob], MEGABYTE).leases
    assert ids(without) == (low[:5] if credit == 5 else names)
    store.due.give_back("s", [act(lease) for lease in without])
    assert ids(store.due.lease("s", [bob, ada], MEGABYTE).leases) == names[:credit]


def test_credit_and_bytes_bound_what_is_leased(store):
    store.messages.create("s", [message(f"m{n}", body=b"x" * 1000) for n in range(10)])
    assert store.due.lease("s", [everything(credit=0)], MEGABYTE).leases == []
    assert len(store.due.lease("s", [everything(credit=3)], MEGABYTE).leases) == 3
    assert len(store.due.lease("s", [everything()], 2999).leases) == 2
    assert len(store.due.lease("s", [everything()], 1).leases) == 1, "a large message does not block"


def test_a_session_goes_on_when_the_longest_lease_gets_shorter(store):
    created(store, "a")
    made(store, max_lease_ms=500)
    (lease,) = store.due.lease("s", [everything(lease_ms=1000)], MEGABYTE).leases
    assert lease.message.at_ms == NOON + 500


def test_leases_that_were_never_sent_are_given_back(store):
    """They do not count as deliveries, and the message is available at its old place."""
    (lease,) = leased(store, "a")
    created(store, "b", at_ms=NOON)
    store.due.give_back("s", [act(lease)])
    found = store.messages.get("s", "a")
    assert (found.at_ms, found.consumer, found.delivery_count) == (NOON, None, 0)
    assert found.version == lease.message.version + 1
    store.due.give_back("s", [act(lease)])
    assert store.messages.get("s", "a") == found, "an old lease gives nothing back"
    assert ids(store.due.lease("s", [everything()], MEGABYTE).leases) == ["a", "b"]


def test_a_consumer_that_returns_gets_its_active_leases(place, store):
    """Each has a new version, which fences the old process, and counts as a delivery."""
    old = leased(store, "a", "b", "c", lease_ms=1000)
    store.messages.delete("s", [act(old[2])])
    epoch = store.sessions.open("s", "ada", "node")
    back = store.due.hand_back("s", "ada", epoch, 10)
    assert ids(back.leases) == ["a", "b"]
    assert [one.message.delivery_count for one in back.leases] == [2, 2]
    assert [one.message.at_ms for one in back.leases] == [NOON + 1000] * 2
    assert store.messages.delete("s", [act(old[0])])[0].code == "stale_version"
    assert store.messages.delete("s", [act(back.leases[0])])[0].status == "ok"
    place.now_ms += 999
    assert ids(store.due.hand_back("s", "ada", epoch, 10).leases) == ["b"]
    place.now_ms += 1
    assert store.due.hand_back("s", "ada", epoch, 10).leases == []


def test_a_lease_that_is_extended_meanwhile_is_handed_back(store, monkeypatch):
    """What a consumer asked for in its earlier session can be done while the new one begins."""
    old = {lease.message.id: lease for lease in leased(store, "a", "b", "c")}
    epoch = store.sessions.open("s", "ada", "node")
    fetch = store.due._tables.fetch

    def fetch_and_change(name, **values):
        found = fetch(name, **values)
        if name == "list_held":
            assert store.messages.extend("s", [act(old["a"], in_ms=60_000)])[0].status == "ok"
            assert store.messages.delete("s", [act(old["b"])])[0].status == "ok"
        return found

    monkeypatch.setattr(store.due._tables, "fetch", fetch_and_change)
    back = {lease.message.id: lease.message for lease in store.due.hand_back("s", "ada", epoch, 10).leases}
    assert back.keys() == {"a", "c"}
    assert (back["a"].at_ms, back["a"].delivery_count) == (NOON + 60_000, 2)
    assert back["a"].version == old["a"].message.version + 2


def test_leases_are_handed_back_within_the_credit(store):
    leased(store, *(f"m{n}" for n in range(9)))
    epoch = store.sessions.open("s", "ada", "node")
    first = ids(store.due.hand_back("s", "ada", epoch, 4).leases)
    assert len(first) == 4
    rest = ids(store.due.hand_back("s", "ada", epoch, 10, known=first).leases)
    assert sorted([*first, *rest]) == [f"m{n}" for n in range(9)]
    assert store.due.hand_back("s", "ada", epoch, 0).leases == []


def test_a_crash_loop_runs_into_max_attempts(place, store):
    """Then the lease is not handed back; it expires and the message is dead."""
    made(store, max_attempts=2)
    leased(store, "a", lease_ms=1000)
    assert len(store.due.hand_back("s", "ada", store.sessions.open("s", "ada", "n"), 9).leases) == 1
    assert store.due.hand_back("s", "ada", store.sessions.open("s", "ada", "n"), 9).leases == []
    place.now_ms += 1000
    assert store.due.lease("s", [everything("bob")], MEGABYTE).dead == 1


def test_a_newer_session_fences_the_older_one(store):
    """The older one gets no leases, and learns of it; other consumers of the statement are not affected."""
    first = store.sessions.open("s", "ada", "node-1")
    second = store.sessions.open("s", "ada", "node-2")
    assert second > first
    created(store, "a", "b")
    takers = [
        Taker("ada", 9, 1000, 0, 1023, first),
        Taker("bob", 9, 1000, 5, 4, store.sessions.open("s", "bob", "n")),
    ]
    got = store.due.lease("s", takers, MEGABYTE)
    assert (got.leases, got.fenced) == ([], {"ada"})
    got = store.due.lease("s", [everything(epoch=second)], MEGABYTE)
    assert (ids(got.leases), got.fenced) == (["a", "b"], frozenset())
    back = store.due.hand_back("s", "ada", first, 9)
    assert (back.leases, back.fenced) == ([], {"ada"})


def test_who_is_there(place, store):
    """A push session lives while its node does; a pull counts for a while after its last call."""
    store.sessions.beat("node-1", 3000, CLOCK)
    store.sessions.beat("node-2", 1000, CLOCK)
    ada, bob = store.sessions.open("s", "ada", "node-1"), store.sessions.open("s", "bob", "node-2")
    store.sessions.attend("s", "eve", 2000)
    made(store, "other")
    store.sessions.attend("other", "zoe", 2000)
    assert store.sessions.present("s").keys() == {"ada", "bob", "eve"}
    assert (store.sessions.present("s")["ada"], store.sessions.present("s")["bob"]) == (ada, bob)
    place.now_ms += 1000
    assert store.sessions.present("s").keys() == {"ada", "eve"}
    store.sessions.beat("node-2", 5000, CLOCK)
    assert store.sessions.present("s").keys() == {"ada", "bob", "eve"}
    place.now_ms += 1000
    assert store.sessions.present("s").keys() == {"ada", "bob"}
    store.sessions.close("s", "bob", bob - 1)
    store.sessions.leave("node-1")
    assert store.sessions.present("s").keys() == {"bob"}
    store.sessions.close("s", "bob", bob)
    assert store.sessions.present("s") == {}


def test_a_pull_does_not_fence_the_session_of_the_same_consumer(store):
    epoch = store.sessions.open("s", "ada", "node")
    store.sessions.attend("s", "ada", 1000)
    created(store, "a")
    assert ids(store.due.lease("s", [everything(epoch=epoch)], MEGABYTE).leases) == ["a"]


def test_when_to_look_again(place, store):
    """At the next moment of any message; a lease counts with its end."""
    assert store.due.next_due("s") == NextDue(NOON, None, None)
    created(store, "a", "b", at_ms=NOON + 500)
    created(store, "c", at_ms=NOON + 700)
    assert store.due.next_due("s") == NextDue(NOON, None, NOON + 500)
    place.now_ms += 500
    assert store.due.next_due("s") == NextDue(NOON + 500, NOON + 500, NOON + 700)
    store.due.lease("s", [everything(lease_ms=100)], MEGABYTE)
    assert store.due.next_due("s") == NextDue(NOON + 500, None, NOON + 600)
    store.messages.delete("s", [own("c")])
    place.now_ms += 50
    assert store.due.next_due("s").next_ms == NOON + 600
