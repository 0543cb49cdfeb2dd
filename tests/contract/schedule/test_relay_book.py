"""The contract of `RelayBook`: the state of a relay changes together with the messages of its schedule."""

from __future__ import annotations

import pytest
from schedule_place import NOON, act, everything, made

from strandline.errors import Conflict, Fenced, NotFound
from strandline.log.cursors import Position
from strandline.schedule.model import ListQuery
from strandline.schedule.relay.rules import letter, message_id
from strandline.schedule.relay.values import RelayMessage, RelayRoute, TargetMark

ROUTE = RelayRoute("s", "orders", "id-of-orders", "later")
MARK = TargetMark("id-of-later", {0: Position(1, 5), 1: Position(1, -1)})
LIMITS = {"limit": 100, "max_bytes": 1_000_000, "lease_ms": 60_000}


def at(offset: int, due_ms: int = NOON, value: bytes = b"{}") -> RelayMessage:
    return RelayMessage(message_id(ROUTE.source_id, 0, Position(1, offset)), due_ms, value)


def fill(store, *messages: RelayMessage, after: Position | None = None, until: int = 9, dead=()) -> int:
    return store.relays.fill(ROUTE, 0, after, Position(1, until), messages, dead)


@pytest.fixture
def book(store):
    store.relays.begin(ROUTE)
    return store.relays


def listed(store) -> list[str]:
    return [one.id for one in store.messages.list("s", ListQuery())]


def test_filling_moves_the_position_with_the_messages(store, book):
    assert book.positions("s") == {}
    assert fill(store, at(1), at(2), until=2) == 0
    fill(store, at(3), after=Position(1, 2), until=3)
    assert book.positions("s") == {0: Position(1, 3)}
    assert listed(store) == [at(1).id, at(2).id, at(3).id]


@pytest.mark.parametrize("after", [None, Position(1, 1), Position(2, 2)])
def test_filling_from_another_position_changes_nothing(store, book, after):
    fill(store, at(1), until=2)
    with pytest.raises(Conflict):
        fill(store, at(7), after=after, until=9, dead=[letter(at(8), "bad")])
    assert (listed(store), book.positions("s"), book.dead_letters("s", 10)) == (
        [at(1).id],
        {0: Position(1, 2)},
        [],
    )


def test_filling_for_another_life_of_the_source_changes_nothing(store, book):
    other = RelayRoute("s", "orders", "another-id", "later")
    with pytest.raises(Conflict):
        book.fill(other, 0, None, Position(1, 2), [at(1)], [])
    assert listed(store) == []


def test_messages_that_the_schedule_refuses_become_dead_letters(store, book):
    """Those that exist are left as they are."""
    far = at(3, NOON + 10**12)
    large = at(4, value=b"x" * 2_000_000)
    fill(store, at(1), until=1)
    assert fill(store, at(1), at(2), far, large, after=Position(1, 1), dead=[letter(at(5), "bad")]) == 3
    assert listed(store) == [at(1).id, at(2).id]
    found = book.dead_letters("s", 10)
    assert [(one.id, one.cursor, one.value) for one in found][:2] == [
        (far.id, Position(1, 3), b"{}"),
        (large.id, Position(1, 4), large.value),
    ]
    assert [one.reason.rpartition(": ")[2] for one in found] == ["too_far", "body_too_large", "bad"]
    assert book.dead_letters("s", 1, found[0].id) == [found[1]]


def test_many_messages_in_one_transaction(store, book):
    messages = [at(offset) for offset in range(1_200)]
    fill(store, *messages, until=1_199)
    record = book.lease("s", book.take_over("s"), MARK, limit=2_000, max_bytes=10**9, lease_ms=60_000)
    assert [one.id for one in record.messages] == [one.id for one in messages]
    assert book.record("s") == record
    book.close("s", 1, record, [])
    assert listed(store) == []


def test_the_oldest_due_messages_are_leased_in_order(store, book, place):
    """By due time, then by id; what is not due waits."""
    fill(store, at(1, NOON - 5), at(2, NOON - 9), at(3, NOON - 5), at(4, NOON + 1), at(5, NOON - 7))
    epoch = book.take_over("s")
    record = book.lease("s", epoch, MARK, **{**LIMITS, "limit": 3})
    assert [one.id for one in record.messages] == [at(2).id, at(5).id, at(1).id]
    assert record.mark == MARK
    assert book.record("s") == record
    held = store.messages.get("s", at(2).id)
    assert (held.consumer, held.at_ms) == ("relay", NOON + 60_000)
    with pytest.raises(Conflict):
        book.lease("s", epoch, MARK, **LIMITS)
    book.close("s", epoch, record, [])
    assert [one.id for one in book.lease("s", epoch, MARK, **LIMITS).messages] == [at(3).id]
    place.now_ms += 1
    assert store.messages.counts("s", 0, NOON + 10_000).available == 1


def test_a_lease_has_a_limit_of_bytes(store, book):
    fill(store, at(1, value=b"x" * 100), at(2, value=b"y" * 100), at(3, value=b"z" * 100))
    epoch = book.take_over("s")
    sizes = []
    for most in (150, 10, 10):
        record = book.lease("s", epoch, MARK, **{**LIMITS, "max_bytes": most})
        sizes.append(len(record.messages))
        book.close("s", epoch, record, [])
    assert sizes == [1, 1, 1]
    assert book.lease("s", epoch, MARK, **LIMITS) is None
    assert book.record("s") is None


def test_a_process_that_was_replaced_changes_nothing(store, book):
    fill(store, at(1))
    old = book.take_over("s")
    record = book.lease("s", old, MARK, **LIMITS)
    new = book.take_over("s")
    assert new > old
    with pytest.raises(Fenced):
        book.close("s", old, record, [])
    with pytest.raises(Fenced):
        book.lease("s", old, MARK, **LIMITS)
    assert book.record("s") == record
    book.close("s", new, record, [letter(at(1), "refused")])
    assert [one.reason for one in book.dead_letters("s", 10)] == ["refused"]
    assert listed(store) == []


def test_closing_twice_is_harmless(store, book):
    fill(store, at(1), at(2, NOON + 5))
    epoch = book.take_over("s")
    record = book.lease("s", epoch, MARK, **LIMITS)
    for _ in range(2):
        book.close("s", epoch, record, [])
    assert (listed(store), book.record("s")) == ([at(2).id], None)


def test_published_messages_are_deleted_whoever_holds_them(store, book, place):
    """The counts of the schedule stay right."""
    fill(store, at(1), at(2), at(3))
    epoch = book.take_over("s")
    record = book.lease("s", epoch, MARK, **LIMITS)
    place.now_ms += 120_000
    assert len(store.due.lease("s", [everything("thief", credit=1)], 1_000_000).leases) == 1
    book.close("s", epoch, record, [])
    store.fold()
    assert listed(store) == []
    assert store.messages.counts("s", 0, NOON + 10**9).total == 0


def test_a_message_that_is_gone_is_not_in_the_record(store, book, place):
    fill(store, at(1), at(2))
    epoch = book.take_over("s")
    book.lease("s", epoch, MARK, **LIMITS)
    place.now_ms += 120_000
    (lease,) = store.due.lease("s", [everything("thief", credit=1)], 1_000_000).leases
    store.messages.delete("s", [act(lease)])
    assert [one.id for one in book.record("s").messages] == [*({at(1).id, at(2).id} - {lease.message.id})]


def test_a_schedule_has_one_relay(store, book):
    book.begin(ROUTE)
    with pytest.raises(Conflict, match="has a relay from 'orders' to 'later'"):
        book.begin(RelayRoute("s", "orders", "id-of-orders", "elsewhere"))
    with pytest.raises(Conflict, match="created again"):
        book.begin(RelayRoute("s", "orders", "another-id", "later"))
    made(store, "limited", max_attempts=2)
    with pytest.raises(Conflict, match="max_attempts"):
        book.begin(RelayRoute("limited", "orders", "id", "later"))


def test_a_schedule_that_is_created_again_has_no_relay(store, book):
    fill(store, at(1), dead=[letter(at(2), "bad")])
    store.delete("s")
    with pytest.raises(NotFound):
        book.begin(ROUTE)
    with pytest.raises(NotFound):
        book.take_over("s")
    made(store)
    book.begin(ROUTE)
    assert (book.positions("s"), book.record("s"), book.dead_letters("s", 10)) == ({}, None, [])


def test_processes_have_leases(store, book):
    processes = book.processes(60_000)
    for owner in ("ada", "bob"):
        processes.renew(owner, f"progress of {owner}")
    assert processes.take("ada", "s")
    assert not processes.take("bob", "s")
    assert processes.owners() == {"ada": "progress of ada", "bob": "progress of bob"}
    processes.leave("ada")
    assert processes.take("bob", "s")
