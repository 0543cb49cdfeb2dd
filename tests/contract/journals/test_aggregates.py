"""Entities whose state is made from their journals, in process and over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from strandline.errors import Conflict, Invalid
from strandline.journal import Aggregate, Aggregates, Journal, NewEvent, Payload


def add(state: dict[str, Any], event: Any) -> dict[str, Any]:
    return {"sum": state["sum"] + event["add"], "count": state["count"] + 1}


def accounts(journal: Journal, **options: Any) -> Aggregates[dict[str, Any]]:
    return Aggregates(journal, {"sum": 0, "count": 0}, add, **options)


def test_the_state_is_made_from_the_events(journal):
    found = accounts(journal).load("one")
    assert found == Aggregate("one", {"sum": 0, "count": 0})
    found = accounts(journal).save(found, [{"add": 2}, {"add": 3}])
    assert (found.state, found.seq_nr) == ({"sum": 5, "count": 2}, 2)
    found = accounts(journal).save(found, [{"add": 1}])
    assert accounts(journal).load("one") == found
    assert accounts(journal).save(found, []) == found


def test_a_state_that_is_out_of_date_is_not_saved(journal):
    old = accounts(journal).load("one")
    accounts(journal).save(old, [{"add": 1}])
    with pytest.raises(Conflict):
        accounts(journal).save(old, [{"add": 2}])
    assert accounts(journal).load("one").state == {"sum": 1, "count": 1}


def test_concurrent_updates_are_all_counted(journal):
    """Each is decided on the state that it is saved after."""
    seen: list[int] = []

    def decide(state: dict[str, Any]) -> list[Any]:
        seen.append(state["count"])
        return [{"add": 1}]

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: accounts(journal).update("one", decide, attempts=1000), range(20)):
            pass
    assert accounts(journal).load("one").state == {"sum": 20, "count": 20}
    assert {*seen} >= {*range(20)}


def test_an_update_gives_up_after_its_attempts(journal):
    def decide(_: Any) -> list[Any]:
        journal.append("one", [{"add": 1}], expected=journal.pointer("one").seq_nr or 0)
        return [{"add": 100}]

    with pytest.raises(Conflict):
        accounts(journal).update("one", decide, attempts=3)
    assert accounts(journal).load("one").state == {"sum": 3, "count": 3}


def test_a_snapshot_stands_for_the_events_before_it(journal):
    """Which may be deleted then."""
    entities = accounts(journal, snapshot_every=3)
    for _ in range(7):
        entities.update("one", lambda _: [{"add": 1}])
    assert journal.snapshot("one").seq_nr == 6
    journal.delete("one", 6)
    assert entities.load("one").state == {"sum": 7, "count": 7}
    with pytest.raises(Conflict, match="no snapshot has their state"):
        accounts(journal).load("one")


def test_a_snapshot_at_the_largest_seq_nr_is_loaded(journal):
    journal.append("one", [NewEvent(Payload("json", b'{"add":1}'), (), 2**63 - 1)])
    journal.save_snapshot("one", 2**63 - 1, {"sum": 1, "count": 1})
    assert accounts(journal, snapshot_every=1).load("one").state == {"sum": 1, "count": 1}


def test_a_snapshot_can_have_any_form(journal):
    entities = Aggregates(
        journal,
        0,
        lambda state, event: state + len(event),
        snapshot_every=1,
        freeze=lambda state: Payload("text", str(state).encode()),
        thaw=int,
    )
    events = [NewEvent(Payload("binary", b"abc")), NewEvent(Payload("text", "äö".encode()))]
    assert entities.update("one", lambda _: events).state == 5
    assert journal.snapshot("one").payload == Payload("text", b"5")
    assert entities.load("one").state == 5


def test_a_new_life_has_a_new_state(journal):
    """A state of the old life cannot be saved, even if the pointer is the same."""
    entities = accounts(journal, snapshot_every=1)
    old = entities.update("one", lambda _: [{"add": 5}])
    journal.purge("one")
    assert entities.load("one").state == {"sum": 0, "count": 0}
    entities.update("one", lambda _: [{"add": 7}])
    with pytest.raises(Conflict):
        entities.save(old, [{"add": 1}])
    assert entities.load("one").state == {"sum": 7, "count": 1}


def test_numbers_of_any_size_are_loaded(journal):
    """They are decoded like those of events of the log."""
    journal.append("a", [NewEvent(Payload("json", b'{"price": 1e400}'))], expected=0)
    prices = Aggregates(journal, None, lambda _, event: event["price"])
    assert prices.load("a").state == Decimal("1e400")


def _prices(text: str) -> NewEvent:
    return NewEvent(Payload("json", text.encode()))


def test_an_integer_of_too_many_digits_for_python_is_a_decimal(journal):
    """Python converts 4,300 digits. The other numbers of the payload stay as they are."""
    digits = "9" * 4301
    last = Aggregates(journal, None, lambda _, event: event)
    saved = last.update("a", lambda _: [_prices(f'{{"price": [{digits}, -{digits}.5, 7, 0.5, 1e400]}}')])
    assert saved.state["price"][0] == Decimal(digits)
    assert [type(number) for number in saved.state["price"]] == [Decimal, Decimal, int, float, Decimal]
    assert last.load("a") == saved


def test_a_number_that_python_cannot_hold_is_an_error_that_names_the_event(journal):
    """It is not stored by `save`. Another writer may store it, and then its bytes can be read."""
    last = Aggregates(journal, None, lambda _, event: event)
    huge = _prices('{"price": 1e99999999999999999999}')
    with pytest.raises(Invalid, match="a new event of 'a' has a number that Python cannot hold"):
        last.update("a", lambda _: [huge])
    assert journal.pointer("a").seq_nr is None
    journal.append("a", [1, huge], expected=0)
    with pytest.raises(Invalid, match="event 2 of 'a' has a number that Python cannot hold"):
        last.load("a")
    assert [event.payload for event in journal.read("a", 2)] == [huge.payload]
