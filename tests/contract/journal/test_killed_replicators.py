"""A process that is killed in the middle of `apply` leaves the batch completely stored, or nothing of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from journal_place import TOPIC, append, at, delete, head, purge, stored

from peers import Peer
from strandline.errors import Conflict
from strandline.journal.model import DeadLetter
from strandline.journal.storage import JournalStore

# Cassandra has no transactions; what holds there is tested in `test_cassandra_kills`.
pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)

WORKER = Path(__file__).with_name("journal_worker.py")
FIRST = [append(0, 1, 20), append(1, 1, 3, entity="b"), append(2, 1, 2, entity="c")]
# Deletes rows and heads, changes heads, adds rows, and begins a new life.
SECOND = [delete(3, 10), append(4, 21, 25), purge(5, "b"), append(6, 1, entity="b"), purge(7, "c"), append(8, 26)]
DEAD = [DeadLetter(0, at(9), 0, "bad", b"k", b"v")]


def state(store: JournalStore) -> tuple[object, ...]:
    journals = [(head(store, entity), stored(store, entity)) for entity in "abc"]
    return (store.pointers(TOPIC), journals, store.dead_letters(TOPIC, 10))


@pytest.fixture
def expected(store: JournalStore) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """The state before and after the second batch; the store is left in the first one."""
    store.apply(TOPIC, 0, None, at(2), FIRST)
    store.apply(TOPIC, 0, at(2), at(9), SECOND, DEAD)
    after = state(store)
    store.forget(TOPIC)
    store.apply(TOPIC, 0, None, at(2), FIRST)
    return state(store), after


@pytest.mark.parametrize("step", range(1, 7))
def test_a_kill_in_the_middle(place, store, expected, step):
    before, after = expected
    peer = Peer(WORKER, place.address, STRANDLINE_TEST_FAILPOINT=f"journal.apply:kill:{step}")
    peer.send("apply", TOPIC, 0, at(2), at(9), SECOND, DEAD)
    assert peer.ended() == signal.SIGKILL
    peer.kill()
    assert state(store) == before
    store.apply(TOPIC, 0, at(2), at(9), SECOND, DEAD)
    assert state(store) == after


def test_a_replicator_that_slept_is_refused(place, store, expected):
    """A process sleeps between two batches. Another one replicates meanwhile; the first one changes nothing."""
    _, after = expected
    peer = Peer(WORKER, place.address)
    peer.stop()
    store.apply(TOPIC, 0, at(2), at(9), SECOND, DEAD)
    peer.wake()
    with pytest.raises(Conflict):
        peer.call("apply", TOPIC, 0, at(2), at(9), SECOND, DEAD)
    assert state(store) == after
    peer.kill()


def test_two_replicators_of_one_partition(place, store, expected):
    """Both apply the same batch at the same time: one is refused."""
    _, after = expected
    peers = [Peer(WORKER, place.address) for _ in range(2)]
    for peer in peers:
        peer.send("apply", TOPIC, 0, at(2), at(9), SECOND, DEAD)
    refused = 0
    for peer in peers:
        try:
            peer.receive()
        except Conflict:
            refused += 1
        peer.kill()
    assert refused == 1
    assert state(store) == after
