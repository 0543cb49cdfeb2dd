"""Who gets the leases of a node: credit, expiry, pulls that wait, and bytes that wait. The time is an argument."""

from __future__ import annotations

import pytest

from strandline.schedule.claims import Claims, PullClaim, PushClaim
from strandline.schedule.model import Body, Lease, StoredMessage

NOW = 1_714_564_800_000
ALL = (0, 1023)


def lease(name, consumer="ada", *, version=10, at_ms=NOW + 1000, size=2):
    return Lease(StoredMessage(name, 7, at_ms, NOW, "shop", consumer, version, 1, NOW), Body(b"x" * size))


def push(consumer="ada", *, credit=2, epoch=5, returning=False):
    return PushClaim(consumer, 1000, epoch, credit, None, returning)


def pull(consumer="ada", *, limit=2, lease_ms=1000, ends_ms=0):
    return PullClaim(consumer, lease_ms, limit, ends_ms, None)


def claims(*given):
    found = Claims()
    for one in given:
        if isinstance(one, PushClaim):
            found.add_push(one)
        else:
            found.pulls.append(one)
    return found


def names(leases):
    return [one.message.id for one in leases]


@pytest.mark.parametrize(("now_ms", "free"), [(NOW + 999, 0), (NOW + 1000, 1), (NOW + 2000, 2)])
def test_an_expired_lease_gives_its_place_back(now_ms, free):
    one = push()
    one.take([lease("a"), lease("b", at_ms=NOW + 2000)])
    assert one.frees_at_ms() == NOW + 1000
    assert one.free(now_ms) == free


@pytest.mark.parametrize(("credit", "held", "many"), [(1, 0, True), (1, 1, False), (8, 6, True), (8, 7, False)])
def test_a_quarter_of_the_places_is_many(credit, held, many):
    """They are filled at once; fewer wait a few milliseconds for others. No places are not many."""
    one = push(credit=credit)
    one.take([lease(f"m{n}") for n in range(held)])
    assert one.has_many_free(NOW) == many
    one.credit = 0
    assert not one.has_many_free(NOW)


def test_an_extended_lease_keeps_its_place():
    one = push(credit=1)
    one.take([lease("a")])
    one.extended("a", 11, NOW + 5000)
    assert one.free(NOW + 4999) == 0
    assert one.free(NOW + 5000) == 1


def test_the_end_of_an_old_lease_does_not_end_a_newer_one():
    """A message that is released can be leased again before the release is reported here."""
    one = push(credit=1)
    one.take([lease("a", version=12)])
    one.drop("a", 11)
    one.extended("a", 11, NOW + 9000)
    assert one.free(NOW) == 0
    one.drop("a", 13)
    assert one.free(NOW) == 1


def test_credit_is_absolute():
    one = push(credit=1)
    one.take([lease("a")])
    one.credit = 3
    assert one.free(NOW) == 2
    one.credit = 0
    assert one.free(NOW) == 0


def test_nothing_more_is_leased_while_many_bytes_wait_to_be_sent():
    one = push(credit=100)
    large = [lease(f"m{n}", size=500_000) for n in range(3)]
    one.take(large)
    assert one.free(NOW) == 0
    one.sent(large[:1])
    one.sent(large[:1])
    assert one.free(NOW) == 97
    assert names(one.take_unsent()) == ["m1", "m2"]


def test_a_consumer_is_one_taker_of_a_statement():
    """Pulls with the same lease time are combined; others wait for the next statement."""
    found = claims(pull(limit=2), pull(limit=3), pull(limit=4, lease_ms=2000), pull("bob", limit=1))
    takers = found.takers({"ada": ALL}, NOW)
    assert [(one.consumer, one.credit, one.lease_ms, one.first, one.last) for one in takers] == [
        ("ada", 5, 1000, 0, 1023),
        ("bob", 1, 1000, 0, -1),
    ]
    assert [one.tried for one in found.pulls] == [True, True, False, True]


def test_the_session_of_a_consumer_comes_before_its_pulls():
    one = push(credit=1)
    found = claims(one, pull())
    assert [taker.epoch for taker in found.takers({}, NOW)] == [5]
    one.take([lease("a")])
    assert [taker.epoch for taker in found.takers({}, NOW)] == [None]


def test_a_session_that_still_gets_its_old_leases_takes_no_new_ones():
    assert claims(push(returning=True)).takers({}, NOW) == []


def test_pulls_are_filled_in_their_order():
    first, second, third = pull(limit=2), pull(limit=2), pull(limit=2)
    found = claims(first, second, third)
    delivery = found.place(found.takers({}, NOW), [lease("a"), lease("b"), lease("c")])
    assert [(one, names(leases)) for one, leases in delivery.pulled] == [(first, ["a", "b"]), (second, ["c"])]
    assert found.pulls == [third]


def test_leases_of_those_who_have_left_are_unwanted():
    one, waiting = push(), pull("bob")
    found = claims(one, waiting)
    takers = found.takers({}, NOW)
    found.remove_push(one)
    assert found.remove_pull(waiting)
    assert not found.remove_pull(waiting)
    delivery = found.place(takers, [lease("a"), lease("b", "bob")])
    assert (delivery.pushed, delivery.pulled, names(delivery.unwanted)) == ([], [], ["a", "b"])


def test_leases_of_an_older_session_are_not_given_to_the_newer_one():
    """The newer session gets them handed back, with a new version."""
    found = claims(push())
    takers = found.takers({}, NOW)
    found.add_push(push(epoch=6))
    assert names(found.place(takers, [lease("a")]).unwanted) == ["a"]


def test_the_session_that_began_later_wins_even_if_it_is_added_first():
    old, new = push(epoch=5), push(epoch=6)
    found = claims(new)
    assert found.add_push(old) is old
    assert found.is_open(new)
    assert not found.is_open(old)


def test_a_pull_that_does_not_wait_is_tried_once():
    """Also if it had to wait for another statement, in which nothing was due."""
    first, second = pull(), pull(lease_ms=2000)
    found = claims(first, second)
    assert found.ended_pulls(1) == []
    takers = found.takers({}, NOW)
    assert found.ended_pulls(1) == [first]
    found.pulls.append(late := pull())
    found.place(takers, [])
    assert found.ended_pulls(1) == [second]
    assert found.pulls == [late]


def test_leases_of_full_sessions_are_compared_with_the_store():
    """Those that ended elsewhere give their places back, and extended ones keep them. Newer leases stay."""
    full, other = push(credit=3), push("bob")
    full.take([lease("a"), lease("b"), lease("c")])
    other.take([lease("d", "bob")])
    both = claims(full, other)
    known = both.in_full_sessions(NOW, 500)
    assert [(one.id, one.consumer, one.version) for one in known] == [(name, "ada", 10) for name in "abc"]
    full.keep("c", 12, NOW + 3000)
    both.compare(known, [lease("a", version=11, at_ms=NOW + 2000).message])
    assert full.held.keys() == {"a", "c"}
    assert [full.free(at_ms) for at_ms in (NOW, NOW + 1999, NOW + 2000)] == [1, 1, 2]
    both.remove_push(full)
    both.compare(known, [])


def test_of_many_leases_others_are_compared_each_time():
    one = push(credit=5)
    one.take([lease(f"m{n}") for n in range(5)])
    both = claims(one)
    assert [[found.id for found in both.in_full_sessions(NOW, 2)] for _ in range(3)] == [
        ["m0", "m1"],
        ["m2", "m3"],
        ["m4", "m0"],
    ]
