"""The contract of every store of subscriptions."""

from __future__ import annotations

import threading
import uuid

import msgspec
import pytest
from subscriptions_place import LEASE_MS, cursors, held, join, made, share, subscription

from strandline.errors import Conflict, Invalid, NotFound
from strandline.log.cursors import Position
from strandline.log.subscriptions.model import Member, Slot

NOWHERE = str(uuid.uuid4())


def commit(store, subscription_id, stream_id, *places):
    """`places` are (partition, offset) in timeline 1, or (partition, timeline, offset)."""
    given = [("orders", p, Position(*(where if len(where) == 2 else (1, *where)))) for p, *where in places]
    return store.commit(subscription_id, stream_id, given)


# -- definitions


def test_a_subscription_comes_back_as_it_was_made(place, store):
    """This process and another one find it unchanged by its id and by its key."""
    asked = msgspec.structs.replace(
        subscription("b", "a"), annotations={"x": "ü"}, authorization={"readers": [{"value": 1}]}
    )
    assert store.create(asked, []) == asked
    for reader in (store, place.open()):
        assert reader.get(asked.id).subscription == asked
        assert reader.find(msgspec.structs.replace(asked, event_types=("a", "b"), id=None)) == asked


def test_there_is_one_subscription_for_a_key(place, store):
    """A second create of the same key, in any process, returns None and changes nothing."""
    first = subscription("a", "b")
    second = msgspec.structs.replace(first, id=str(uuid.uuid4()), event_types=("b", "a"), labels={"x": "y"})
    assert store.create(first, [share(0, name="a")]) is not None
    assert place.open().create(second, [share(0, 5, name="a")]) is None
    assert store.get(second.id) is None
    assert store.get(first.id).subscription == first
    assert cursors(store, first.id) == [(1, -1)]


def test_of_many_that_create_at_once_one_succeeds(place):
    """Of concurrent creates with separate connections, exactly one succeeds."""
    asked = subscription()
    stores = [place.open() for _ in range(4)]
    results = []

    def create(store):
        results.append(store.create(msgspec.structs.replace(asked, id=str(uuid.uuid4())), []))

    threads = [threading.Thread(target=create, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result is not None for result in results) == 1


def test_search_is_newest_first_and_keeps_to_its_filters(store):
    """A search filters by the owner and by all given event types."""
    one = store.create(subscription("a", owner="x"), [])
    two = store.create(subscription("a", "b", owner="y"), [])
    three = store.create(subscription("b", owner="x"), [])
    assert store.search() == [three, two, one]
    assert store.search("x") == [three, one]
    assert store.search(event_types=["b"]) == [three, two]
    assert store.search(event_types=["b", "a"]) == [two]
    assert store.search("x", ["a", "b"]) == []
    assert store.search(limit=1, offset=1) == [two]


def test_an_update_replaces_the_definition(store):
    created = store.create(subscription(), [])
    changed = msgspec.structs.replace(created, labels={"team": "x"})
    store.update(changed)
    assert store.get(created.id).subscription == changed
    with pytest.raises(NotFound):
        store.update(msgspec.structs.replace(created, id=NOWHERE))


def test_a_deleted_subscription_is_gone_with_cursors_and_streams(store):
    """The cursors and streams are deleted too, and the key is free."""
    asked = subscription()
    store.create(asked, [share(0)])
    stream = join(store, asked.id)
    store.delete(asked.id)
    assert store.get(asked.id) is None
    assert store.layout(asked.id) == ([], [])
    assert store.leases.held(stream) is None
    with pytest.raises(NotFound):
        store.delete(asked.id)
    with pytest.raises(NotFound):
        commit(store, asked.id, stream, (0, 1))
    assert store.create(asked, []) is not None


# -- cursors


def test_cursors_begin_where_they_are_put_first(store):
    """The first cursor of a partition is kept; open streams get new partitions."""
    created = store.create(subscription(), [])
    store.initialise(created.id, [share(0, 4)])
    stream = join(store, created.id)
    store.initialise(created.id, [share(0, 9), share(1, 2)])
    assert cursors(store, created.id) == [(1, 4), (1, 2)]
    assert held(store, stream) == [0, 1]
    with pytest.raises(NotFound):
        store.initialise(NOWHERE, [share(0)])


def test_a_commit_moves_forward_only(store):
    """Each cursor moves forward only, also across timelines; the same position again is outdated."""
    ident = made(store)
    stream = join(store, ident)
    assert commit(store, ident, stream, (0, 5)) == ["committed"]
    assert commit(store, ident, stream, (0, 4), (1, 3)) == ["outdated", "committed"]
    assert commit(store, ident, stream, (0, 5)) == ["outdated"]
    assert commit(store, ident, stream, (0, 2, -1)) == ["committed"]
    assert commit(store, ident, stream, (0, 9)) == ["outdated"]
    assert commit(store, ident, stream, (1, 4), (1, 3), (1, 6)) == ["committed", "outdated", "committed"]
    assert cursors(store, ident) == [(2, -1), (1, 6)]
    assert commit(store, ident, stream) == []


def test_a_commit_of_a_foreign_partition_moves_nothing(store):
    """One unknown partition refuses all commits of the request."""
    ident = made(store)
    stream = join(store, ident)
    with pytest.raises(Invalid, match="partition 7"):
        commit(store, ident, stream, (0, 5), (7, 1))
    assert cursors(store, ident) == [(1, -1), (1, -1)]


def test_a_stream_commits_only_slots_that_it_has_or_had(place, store):
    """Another's slot refuses all commits of the request. A repeated commit is outdated, whoever has the slot."""
    ident = made(store)
    first, second = join(store, ident, "node-1", 0), join(store, ident, "node-2", 1)
    with pytest.raises(Invalid, match="does not belong"):
        commit(store, ident, first, (0, 5), (1, 5))
    assert cursors(store, ident) == [(1, -1), (1, -1)]
    assert commit(store, ident, second, (1, 5)) == ["committed"]
    assert commit(store, ident, first, (1, 5)) == ["outdated"]
    store.leases.leave(first)
    third = join(place.open(), ident, "node-2", 0)
    assert commit(store, ident, first, (0, 2)) == ["committed"], "as long as it could after its end"
    with pytest.raises(Invalid, match="does not belong"):
        commit(store, ident, first, (1, 9))
    assert commit(store, ident, third, (0, 3)) == ["committed"]


def test_a_stream_that_expired_unnoticed_keeps_its_slots_when_another_leaves(place, store):
    """Nothing has renewed or joined since the lease expired, so the stream that leaves moves the slots of both."""
    ident = made(store)
    died, left = join(store, ident, "node-1"), join(store, ident, "node-2")
    store.leases.renew("node-2", [left])
    store.leases.release(died, [Slot("et-1", 1)])
    place.now_ms += LEASE_MS
    store.leases.leave(left)
    assert commit(store, ident, died, (0, 2)) == ["committed"]
    assert commit(store, ident, left, (1, 2)) == ["committed"]


def test_a_stream_that_forfeits_its_slots_commits_nothing_more(store):
    ident = made(store)
    late = join(store, ident)
    assert commit(store, ident, late, (0, 1)) == ["committed"]
    store.leases.leave(late, forfeit=True)
    store.leases.leave(late)
    with pytest.raises(Invalid, match="did not commit in time"):
        commit(store, ident, late, (0, 2))
    assert cursors(store, ident) == [(1, 1), (1, -1)]


def test_commits_need_a_stream_of_that_subscription(store):
    """A stream that is unknown or belongs to another subscription is refused."""
    ident, other = made(store), made(store)
    with pytest.raises(Invalid, match="no such stream"):
        commit(store, ident, NOWHERE, (0, 1))
    with pytest.raises(Invalid, match="no such stream"):
        commit(store, ident, join(store, other), (0, 1))


def test_commits_are_taken_for_60_s_after_the_end(place, store):
    """Any process accepts commits for 60 s after the stream left or its lease expired."""
    ident = made(store)
    left, died = join(store, ident, "node-1"), join(store, ident, "node-2")
    store.leases.leave(left)
    place.now_ms += 60_000
    assert commit(place.open(), ident, left, (0, 1)) == ["committed"]
    place.now_ms += LEASE_MS
    assert commit(store, ident, died, (0, 2)) == ["committed"]
    with pytest.raises(Invalid, match="60 s ago"):
        commit(store, ident, left, (0, 3))
    place.now_ms += 1
    with pytest.raises(Invalid, match="60 s ago"):
        commit(store, ident, died, (0, 3))
    place.now_ms += 120_000
    store.leases.renew("node-3", [])
    with pytest.raises(Invalid, match="no such stream"):
        commit(store, ident, died, (0, 3))


def test_racing_commits_end_at_the_farthest(place):
    """Concurrent commits end at the highest offset, in any order."""
    ident = made(place.open(), 1)
    stores = [place.open() for _ in range(3)]
    stream = join(stores[0], ident)
    verdicts: list[str] = []

    def work(store, offsets):
        for offset in offsets:
            verdicts.extend(commit(store, ident, stream, (0, offset)))

    threads = [threading.Thread(target=work, args=(s, range(n, 60, 3))) for n, s in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verdicts) == 60
    assert cursors(stores[0], ident) == [(1, 59)]


def test_what_expired_is_skipped_once_and_counted(store):
    """`skip` is a compare-and-set on the expired cursor."""
    ident = made(store, 1)
    (before,) = store.layout(ident)[0]
    assert store.skip(ident, before, Position(1, 9), 10)
    assert not store.skip(ident, before, Position(1, 19), 20)
    (after,) = store.layout(ident)[0]
    assert (after.position, after.skipped) == (Position(1, 9), 10)
    assert store.skip(ident, after, Position(1, 11), 2)
    assert store.layout(ident)[0][0].skipped == 12


# -- resets


def test_a_reset_moves_back_ends_streams_and_outdates_them(place, store):
    """Later commits of older streams are refused; those of newer streams are accepted."""
    ident = made(store)
    old = join(store, ident)
    commit(store, ident, old, (0, 5), (1, 5))
    place.open().reset(ident, [share(0, 2)])
    assert cursors(store, ident) == [(1, 2), (1, 5)]
    assert store.leases.held(old) is None
    assert store.layout(ident)[1] == []
    with pytest.raises(Conflict, match="reset"):
        commit(store, ident, old, (0, 6))
    new = join(store, ident)
    assert held(store, new) == [0, 1]
    assert commit(store, ident, new, (0, 3)) == ["committed"]


def test_a_reset_forgets_what_was_skipped_and_raises_the_epoch(store):
    ident = made(store, 1)
    store.skip(ident, store.layout(ident)[0][0], Position(1, 9), 10)
    epoch = store.get(ident).epoch
    store.reset(ident, [share(0)])
    assert store.layout(ident)[0][0].skipped == 0
    assert store.get(ident).epoch > epoch
    with pytest.raises(NotFound):
        store.reset(NOWHERE, [share(0)])


def test_a_reset_to_another_incarnation_replaces_the_old_one(store):
    """After a reset to a recreated event type no cursor of the old one is left."""
    ident = made(store, 3)
    store.reset(ident, [share(0, of="et-2"), share(1, of="et-2")])
    assert [one.slot for one in store.layout(ident)[0]] == [Slot("et-2", 0), Slot("et-2", 1)]


# -- leases


def test_streams_share_the_partitions_and_a_newcomer_waits_for_its_part(place, store):
    """An owner keeps a slot until it releases it; the heir gets the slot at once."""
    ident = made(store, 4)
    first = join(store, ident)
    assert held(store, first) == [0, 1, 2, 3]
    second = join(place.open(), ident, "node-2")
    shares = store.layout(ident)[0]
    moving = [one for one in shares if one.heir is not None]
    assert [one.owner for one in shares] == [first] * 4
    assert [one.heir for one in moving] == [second] * 2
    assert held(store, second) == []
    store.leases.release(first, [one.slot for one in moving])
    assert sorted(held(store, first) + held(store, second)) == [0, 1, 2, 3]
    assert len(held(store, second)) == 2


def test_only_what_another_waits_for_is_handed_on_and_only_by_its_owner(store):
    """A release of a slot without an heir, or by another stream, has no effect."""
    ident = made(store)
    first = join(store, ident)
    store.leases.release(first, [Slot("et-1", 0)])
    assert held(store, first) == [0, 1]
    second = join(store, ident)
    store.leases.release(second, [Slot("et-1", 0), Slot("et-1", 1)])
    assert held(store, first) == [0, 1]


def test_what_a_leaving_stream_had_goes_to_the_others_at_once(store):
    """A slot that a leaving stream was to get stays with its owner."""
    ident = made(store, 3)
    first, second = join(store, ident), join(store, ident)
    store.leases.leave(first)
    assert held(store, second) == [0, 1, 2]
    assert store.leases.held(first) is None
    third = join(store, ident)
    store.leases.leave(third)
    assert [one.heir for one in store.layout(ident)[0]] == [None] * 3
    store.leases.leave(third)
    store.leases.leave(NOWHERE)


def test_a_full_subscription_takes_no_more_streams(store):
    """A refused stream leaves no data."""
    ident = made(store, 1)
    join(store, ident)
    with pytest.raises(Conflict, match="no free slots"):
        join(store, ident)
    assert len(store.layout(ident)[1]) == 1
    with pytest.raises(NotFound):
        store.leases.join(NOWHERE, Member("x", frozenset({Slot("et-1", 0)})), "node-1")


def test_partitions_asked_for_directly_go_to_who_asked(store):
    """A directly requested partition is taken from the sharing streams and does not return to them."""
    ident = made(store, 3)
    sharing = join(store, ident)
    direct = join(store, ident, "node-1", 1)
    store.leases.release(sharing, [Slot("et-1", 1)])
    assert (held(store, sharing), held(store, direct)) == ([0, 2], [1])
    assert [member.direct for member in store.layout(ident)[1]] == [None, frozenset({Slot("et-1", 1)})]
    with pytest.raises(Conflict, match="directly"):
        join(store, ident, "node-2", 1, 2)


def test_a_node_that_dies_loses_its_streams_after_a_lease(place, store):
    """After the lease expires, the next renew or join takes over, and the old stream stays ended."""
    other = place.open()
    ident = made(store)
    dead, alive = join(store, ident, "node-1"), join(other, ident, "node-2")
    store.leases.release(dead, [Slot("et-1", 0), Slot("et-1", 1)])
    for _ in range(4):
        place.now_ms += LEASE_MS // 4 - 1
        other.leases.renew("node-2", [alive])
        assert len(held(other, dead)) == len(held(other, alive)) == 1
    place.now_ms += 4
    assert store.leases.held(dead) is None
    assert {one.owner for one in store.layout(ident)[0]} == {None, alive}
    other.leases.renew("node-2", [alive])
    assert held(other, alive) == [0, 1]
    store.leases.renew("node-1", [dead])
    assert store.leases.held(dead) is None


def test_a_stream_that_is_not_renewed_runs_out(place, store):
    """A stream expires if its node renews only its other streams."""
    ident = made(store)
    forgotten, open_one = join(store, ident, "node-1"), join(store, ident, "node-1")
    for _ in range(3):
        place.now_ms += LEASE_MS // 2
        store.leases.renew("node-1", [open_one])
    assert store.leases.held(forgotten) is None
    assert held(store, open_one) == [0, 1]


def test_a_joining_stream_finds_the_dead_ones_gone(place, store):
    """Expired streams do not occupy slots."""
    ident = made(store, 1)
    join(store, ident, "node-1")
    place.now_ms += LEASE_MS
    assert held(store, join(store, ident, "node-2")) == [0]


def test_versions_tell_changes_of_others_but_not_heartbeats(place, store):
    """The version changes with every change of that subscription, by any process, but not with renewals."""
    other = place.open()
    ident, foreign = made(store), made(store)
    stream = join(store, ident)

    def version():
        return store.leases.versions([ident])[ident]

    before = version()
    for change in (
        lambda: commit(other, ident, stream, (0, 1)),
        lambda: join(other, ident, "node-2"),
        lambda: other.leases.release(stream, [one.slot for one in other.layout(ident)[0] if one.heir]),
        lambda: other.leases.leave(stream),
        lambda: other.reset(ident, [share(0)]),
        lambda: other.initialise(ident, [share(2)]),
        lambda: store.delete(ident),
    ):
        for quiet in (lambda: other.leases.renew("node-1", [stream]), lambda: join(store, foreign, "n") and None):
            if len(store.layout(foreign)[1]) < 2:
                quiet()
            assert version() == before
        change()
        assert version() != before
        before = version()
