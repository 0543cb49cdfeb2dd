"""Assignment of partitions to streams, and commits: small cases as examples, all others by properties."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Conflict, Invalid
from strandline.log.cursors import Position
from strandline.log.subscriptions import rules
from strandline.log.subscriptions.model import Member, Share, Slot, StreamParameters, Subscription, complete

START = Position(1, -1)


def share(partition: int, owner: str | None = None, heir: str | None = None) -> Share:
    return Share(Slot("et", partition), "orders", START, 0, owner, heir)


def applied(shares, members) -> list[Share]:
    result = rules.rebalanced(shares, members)
    return [Share(s.slot, s.event_type, s.position, s.skipped, *result[s.slot]) for s in shares]


def handed_on(shares) -> list[Share]:
    """The shares after every owner has released the slots that another stream waits for."""
    return [Share(s.slot, s.event_type, s.position, s.skipped, s.heir or s.owner) for s in shares]


# -- sharing


def test_every_start_and_every_change_of_streams_ends_even():
    """After all releases, the numbers of partitions of two streams differ by at most one."""
    for count, before, after in itertools.product(range(1, 8), range(8), range(1, 8)):
        shares = [share(p) for p in range(count)]
        first = [Member(f"s{n}") for n in range(before)]
        shares = handed_on(applied(shares, first))
        # The newer half of the streams stays, and new streams join.
        second = [*first[before // 2 :], *(Member(f"t{n}") for n in range(after))]
        shares = handed_on(applied(shares, second))
        sizes = Counter({member.id: 0 for member in second})
        sizes.update(s.owner for s in shares)
        assert set(sizes) == {member.id for member in second}
        assert max(sizes.values()) - min(sizes.values()) <= 1


members = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.frozensets(st.integers(0, 9), min_size=1)),
    max_size=6,
    unique_by=lambda member: member[0],
)


def to_members(drawn) -> list[Member]:
    """Streams whose direct requests do not overlap; joining ensures this."""
    taken: set[int] = set()
    found = []
    for number, wish in drawn:
        mine = None if wish is None else wish - taken
        taken |= mine or set()
        direct = None if mine is None else frozenset(Slot("et", p) for p in mine)
        found.append(Member(f"s{number}", direct))
    return found


@given(st.integers(1, 10), st.lists(members, max_size=6))
def test_rebalancing_keeps_its_promises_from_any_history(count, history):
    """Direct requests are met, live owners keep slots until they release them, and dead ones own nothing."""
    shares = [share(p) for p in range(count)]
    for drawn in history:
        streams = to_members(drawn)
        before = {s.slot: s for s in shares}
        shares = applied(shares, streams)
        alive = {m.id for m in streams}
        sharing = [m for m in streams if m.direct is None]
        for s in shares:
            assert s.owner in {None, *alive}
            assert s.heir in {None, *alive} - {s.owner} | {None}
            if before[s.slot].owner in alive:
                assert s.owner == before[s.slot].owner
            direct = [m.id for m in streams if m.direct and s.slot in m.direct]
            final = s.heir or s.owner
            if direct:
                assert final == direct[0]
            elif sharing:
                assert final in {m.id for m in sharing}
            else:
                assert s.heir is None
        assert applied(shares, streams) == shares, "a second rebalance changed something"


@given(st.integers(1, 12), st.integers(1, 6))
def test_a_newcomer_moves_no_more_than_its_part(count, streams):
    """A new stream causes as few moves as possible."""
    old = [Member(f"s{n}") for n in range(streams)]
    shares = applied([share(p) for p in range(count)], old)
    moved = [s for s in applied(shares, [*old, Member("new")]) if s.heir is not None]
    assert len(moved) == count // (streams + 1)
    assert {s.heir for s in moved} <= {"new"}


def test_an_heir_that_leaves_gives_the_partition_back():
    """The owner keeps the partition."""
    old = [Member("a")]
    shares = applied([share(0), share(1)], old)
    during = applied(shares, [*old, Member("b")])
    assert [s.heir for s in during].count("b") == 1
    assert applied(during, old) == shares


def test_a_dead_owners_partition_goes_to_its_heir_at_once():
    """The heir does not wait for a release."""
    assert applied([share(0, "a", "b")], [Member("b")]) == [share(0, "b")]


# -- joining


def test_no_more_streams_than_partitions():
    """One more stream is refused with Conflict, as Nakadi answers 409."""
    slots = [Slot("et", 0), Slot("et", 1)]
    rules.check_join(slots, [Member("a")], Member("b"))
    with pytest.raises(Conflict, match="no free slots"):
        rules.check_join(slots, [Member("a"), Member("b")], Member("c"))


def test_what_is_asked_for_directly_is_not_shared():
    """A partition that was requested directly is not a free slot and cannot be requested twice."""
    slots = [Slot("et", 0), Slot("et", 1)]
    direct = Member("a", frozenset({slots[0]}))
    rules.check_join(slots, [direct], Member("b"))
    with pytest.raises(Conflict, match="no free slots"):
        rules.check_join(slots, [direct, Member("b")], Member("c"))
    with pytest.raises(Conflict, match="asked for partition 0 directly"):
        rules.check_join(slots, [direct], Member("c", frozenset(slots)))
    rules.check_join(slots, [direct, Member("b")], Member("c", frozenset({slots[1]})))


# -- commits


@given(st.tuples(st.integers(1, 3), st.integers(-1, 5)), st.tuples(st.integers(1, 3), st.integers(-1, 5)))
def test_cursors_move_forward_only(stored, given_):
    """A commit of the same position is outdated, too."""
    expected = "committed" if given_ > stored else "outdated"
    assert rules.verdict(Position(*stored), Position(*given_)) == expected


@pytest.mark.parametrize(
    ("stream_epoch", "ended_ms", "error"),
    [
        (2, None, None),
        (2, 40_000, None),
        (2, 39_999, Invalid),
        (2, 130_000, None),
        (1, None, Conflict),
        (1, 40_000, Conflict),
        (None, None, Invalid),
    ],
)
def test_who_may_commit(stream_epoch, ended_ms, error):
    """Streams of this epoch can commit until 60 s after their end. Now is 100,000 ms, the epoch is 2."""
    if error is None:
        rules.check_commit(2, stream_epoch, ended_ms, 100_000)
    else:
        with pytest.raises(error):
            rules.check_commit(2, stream_epoch, ended_ms, 100_000)


def test_a_client_is_overdue_when_its_time_has_passed():
    """Only a client with uncommitted events can be overdue."""
    assert not rules.overdue(None, 10, 100)
    assert not rules.overdue(91, 10, 100)
    assert rules.overdue(90, 10, 100)


# -- definitions


def test_the_key_ignores_order_and_repetition():
    """A missing consumer group is the default one."""
    one = Subscription("app", ("b", "a", "b"))
    other = Subscription("app", ("a", "b"), "default")
    assert rules.key(one) == rules.key(other)
    assert rules.key(one) != rules.key(Subscription("app", ("a", "b"), "billing"))


def test_what_is_left_out_or_null_gets_its_default():
    """Clients may send null for unknown fields."""
    asked = Subscription("app", ("a", "a"), None, None, None)
    made = complete(asked, "id", "now")
    assert (made.consumer_group, made.read_from, made.initial_cursors) == ("default", "end", ())
    assert made.event_types == ("a",)
    assert (made.id, made.created_at, made.updated_at) == ("id", "now", "now")


def test_reading_from_cursors_needs_cursors():
    with pytest.raises(Invalid, match="initial_cursors"):
        complete(Subscription("app", ("a",), read_from="cursors"), "id", "now")


def test_only_what_does_not_identify_it_may_change():
    before = Subscription("app", ("a", "b"), "g", "begin")
    rules.changed(before, Subscription("app", ("b", "a"), "g", "begin", labels={"x": "y"}))
    rules.changed(before, Subscription("app", ("b", "a"), "g", None))
    for after in (
        Subscription("other", ("a", "b"), "g", "begin"),
        Subscription("app", ("a",), "g", "begin"),
        Subscription("app", ("a", "b"), "h", "begin"),
        Subscription("app", ("a", "b"), "g", "end"),
    ):
        with pytest.raises(Invalid, match="cannot change"):
            rules.changed(before, after)


def test_zero_means_the_default():
    """Nakadi's POST that opens a stream has the same rule."""
    zero = StreamParameters(0, 0, 0, 0, 0, 0, 0)
    usual = StreamParameters()
    assert zero.window == usual.window == 10
    assert zero.commit_timeout_ms == usual.commit_timeout_ms == 60_000
    assert zero.limits.batch_limit == usual.limits.batch_limit == 1
    with pytest.raises(Invalid, match="stream_limit"):
        _ = StreamParameters(batch_limit=5, stream_limit=3).limits


def test_a_short_stream_needs_no_flush_timeout():
    """The default of `batch_flush_timeout` is no contradiction: clients that exist leave it out."""
    assert StreamParameters(stream_timeout=5).limits.batch_flush_timeout == 5
    with pytest.raises(Invalid, match="batch_flush_timeout"):
        _ = StreamParameters(stream_timeout=5, batch_flush_timeout=6).limits
