"""States, preconditions, ids and buckets of the schedule, without a store."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import BadTimestamp
from strandline.schedule import rules
from strandline.schedule.dealing import assign, deal, hash_of
from strandline.schedule.model import (
    Body,
    DueMessage,
    LeaseAct,
    Moment,
    NewMessage,
    OwnerAct,
    Schedule,
    StoredMessage,
    Taker,
)
from strandline.schedule.rules import Found

NOW = 1_714_564_800_000
SCHEDULE = Schedule("s", max_future_ms=1000, max_lease_ms=100, dedupe_ms=50)


def found(at_ms=NOW, consumer=None, *, dead=False, tombstone=False):
    stored = StoredMessage("a", 7, at_ms, NOW, "shop", consumer, 10, 1, NOW)
    return Found(SCHEDULE, NOW, stored, dead, tombstone, rules.body_hash(Body(b"x")))


@pytest.mark.parametrize(
    ("at_ms", "consumer", "expected"),
    [
        (NOW - 1, None, "available"),
        (NOW, None, "available"),
        (NOW, "ada", "available"),
        (NOW + 1, None, "waiting"),
        (NOW + 1, "ada", "processing"),
    ],
)
def test_states_are_evaluated_in_their_order(at_ms, consumer, expected):
    """A lease that has ended makes a message available, whoever held it."""
    assert rules.state(at_ms, consumer, NOW) == expected


@pytest.mark.parametrize(("in_ms", "code"), [(5, "bad_timestamp"), (6, None), (100, None), (101, "bad_timestamp")])
def test_an_extension_ends_within_the_longest_lease(in_ms, code):
    asked = LeaseAct("a", "ada", 10, Moment(in_ms, relative=True))
    assert rules.refused_extend(asked, found(NOW + 1, "ada")) == code


@pytest.mark.parametrize(("in_ms", "code"), [(5, "bad_timestamp"), (6, None), (1000, None), (1001, "too_far")])
def test_a_release_is_within_the_horizon(in_ms, code):
    assert rules.refused_release(LeaseAct("a", "ada", 10, Moment(NOW + in_ms)), found(NOW + 1, "ada")) == code


def test_the_lease_time_of_a_call():
    for lease_ms in (6, 100):
        rules.check_lease_ms(SCHEDULE, lease_ms)
    for lease_ms in (-1, 5, 101):
        with pytest.raises(BadTimestamp, match="at most 100"):
            rules.check_lease_ms(SCHEDULE, lease_ms)


@pytest.mark.parametrize(("age", "code"), [(49, "already_exists"), (50, None), (51, None)])
def test_a_tombstone_blocks_its_id_for_the_dedupe_window(age, code):
    item = NewMessage("a", "shop", Body(b"x"))
    assert rules.refused_create(item, found(NOW - age, tombstone=True)) == code


def test_who_repeats_a_delete():
    """The deleter with its version. A tombstone has the version after the delete."""
    by_holder, by_owner = found(consumer="ada", tombstone=True), found(tombstone=True)
    assert rules.is_repeated_delete(LeaseAct("a", "ada", 9), by_holder)
    assert not rules.is_repeated_delete(LeaseAct("a", "ada", 10), by_holder)
    assert not rules.is_repeated_delete(LeaseAct("a", "bob", 9), by_holder)
    assert not rules.is_repeated_delete(OwnerAct("a", "shop"), by_holder)
    assert rules.is_repeated_delete(OwnerAct("a", "shop"), by_owner)
    assert not rules.is_repeated_delete(OwnerAct("a", "other"), by_owner)
    assert not rules.is_repeated_delete(OwnerAct("a", "shop"), found())


def test_dead_messages_are_not_found_by_the_operations_on_live_ones():
    dead = found(consumer="ada", dead=True)
    assert rules.refused_to_holder(LeaseAct("a", "ada", 10), dead) == "not_found"
    assert rules.refused_to_owner(OwnerAct("a", "shop"), dead) == "not_found"
    assert rules.refused_to_owner(OwnerAct("a", "shop"), dead, dead=True) is None


def test_ids_are_unique_and_sorted_by_time():
    first, second, later = rules.new_id(NOW), rules.new_id(NOW), rules.new_id(NOW + 1)
    assert first != second
    assert max(first, second) < later
    assert {len(first), len(later)} == {32}


def test_programs_with_the_same_seed_make_different_ids():
    """Otherwise messages of two workers that begin alike would be taken for the same message."""
    random.seed(7)
    first = rules.new_id(NOW)
    random.seed(7)
    assert rules.new_id(NOW) != first


@pytest.mark.parametrize(
    ("buckets", "consumers", "expected"),
    [
        (89, "cab", {"a": (0, 29), "b": (30, 59), "c": (60, 88)}),
        (2, "abc", {"a": (0, 0), "b": (1, 1), "c": (2, 1)}),
        (1024, "a", {"a": (0, 1023)}),
        (7, "", {}),
    ],
)
def test_buckets_are_dealt_in_contiguous_parts(buckets, consumers, expected):
    """Sorted by consumer, ceil(B/C) each; the last ones may get fewer or none."""
    assert deal(buckets, [*consumers]) == expected


@given(st.integers(1, 2000), st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=50))
def test_every_bucket_is_dealt_once(buckets, consumers):
    dealt = deal(buckets, [*consumers])
    assert [bucket for first, last in dealt.values() for bucket in range(first, last + 1)] == [*range(buckets)]


def test_ids_spread_over_the_buckets():
    """Also ids that differ in their last characters only."""
    used = {hash_of(f"user-{n}") % 1024 for n in range(20_000)}
    assert len(used) == 1024


def due(name, bucket, late=0, size=1):
    return DueMessage(name, bucket, NOW - late, 1, size)


def names(assigned):
    return [(message.id, taker.consumer) for message, taker in assigned]


ADA, BOB = Taker("ada", 2, 100, 0, 4), Taker("bob", 2, 100, 5, 9)


def test_messages_go_to_the_takers_of_their_buckets_oldest_first():
    waiting = [due("new", 0), due("old", 9, 3), due("mid", 4, 2), due("nobody", 10, 4)]
    assert names(assign(waiting, [ADA, BOB], NOW, 99)) == [("old", "bob"), ("mid", "ada"), ("new", "ada")]


@pytest.mark.parametrize(("late", "expected"), [(4, []), (5, [("x", "bob")])])
def test_after_the_grace_the_taker_with_most_credit_gets_it(late, expected):
    few = Taker("ada", 1, 100, 0, 4)
    assert names(assign([due("x", 99, late)], [few, BOB], NOW, 99)) == expected


def test_credit_is_never_exceeded():
    waiting = [due(f"m{n}", n % 10, 100 + n) for n in range(20)]
    assert len(assign(waiting, [ADA, BOB], NOW, 999)) == 4
    assert assign(waiting, [], NOW, 999) == []


def test_messages_of_others_wait_behind_younger_ones_for_a_second_at_most():
    """So nodes with a backlog do not compete, and nothing starves."""
    waiting = [due("other", 99, 1_500), due("mine", 0, 600), due("older", 1, 400)]
    assert names(assign(waiting, [ADA], NOW, 99)) == [("mine", "ada"), ("other", "ada")]


def test_bytes_bound_the_assignment_but_never_block_it():
    waiting = [due("a", 0, 3, size=10), due("b", 1, 2, size=10), due("c", 5, 1, size=1)]
    assert names(assign(waiting, [ADA, BOB], NOW, 15)) == [("a", "ada")]
    assert names(assign(waiting, [ADA, BOB], NOW, 1)) == [("a", "ada")]


@pytest.mark.parametrize("name", ["reminders.dead", "reminders"])
def test_the_view_of_dead_messages_is_a_suffix(name):
    assert rules.split_view(name) == ("reminders", name.endswith(".dead"))
