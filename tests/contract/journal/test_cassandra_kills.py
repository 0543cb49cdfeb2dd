"""A replicator is killed at each write to Cassandra: reads stay correct, and its successor leaves no traces."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cassandra_place import KilledError, Log, Place, model, random_log, read, read_log, read_store

from peers import Peer
from services.cassandra import CassandraServer
from strandline.errors import Unavailable
from strandline.log.cursors import Position

WORKER = Path(__file__).with_name("cassandra_worker.py")


@pytest.fixture(scope="module")
def place(cassandra: CassandraServer) -> Iterator[Place]:
    made = Place(cassandra)
    yield made
    made.close()


def appended_to_several_segments(log: Log) -> Position:
    log.append("a", 1, 2)
    before = log.end
    log.append("a", 3, 4, 5)
    log.append("b", 20, 21)
    return before


def deleted_over_several_segments(log: Log) -> Position:
    log.append("a", *range(1, 12))
    log.append("b", 1)
    before = log.end
    log.append("a", 12)
    log.delete("a", 8)
    log.delete("b", 1)
    return before


def appended_after_everything_was_deleted(log: Log) -> Position:
    log.append("a", *range(1, 8))
    before = log.end
    log.delete("a", 7)
    log.append("a", 30, 31)
    return before


def deleted_completely(log: Log) -> Position:
    """No segment is left that leads to those that must still be deleted."""
    log.append("a", *range(1, 10))
    before = log.end
    log.delete("a", 9)
    return before


def deleted_completely_and_purged(log: Log) -> Position:
    before = deleted_completely(log)
    log.purge("a")
    return before


def purged(log: Log) -> Position:
    log.append("a", *range(1, 12))
    log.append("b", 1)
    before = log.end
    log.append("a", 12)
    log.purge("a")
    return before


def purged_and_begun_again(log: Log) -> Position:
    log.append("a", *range(1, 12))
    before = log.end
    log.append("a", 12, 13)
    log.purge("a")
    log.append("a", 1, 2)
    log.purge("a")
    log.append("a", 5)
    log.delete("a", 2)
    return before


def begun_and_purged_in_one_batch(log: Log) -> Position:
    log.append("b", 1)
    before = log.end
    log.append("a", 1, 2, 3, 4)
    log.purge("a")
    log.append("b", 2)
    return before


SCENARIOS = [
    appended_to_several_segments,
    deleted_over_several_segments,
    appended_after_everything_was_deleted,
    deleted_completely,
    deleted_completely_and_purged,
    purged,
    purged_and_begun_again,
    begun_and_purged_in_one_batch,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_killed_at_each_write(place: Place, scenario: Callable[[Log], Position]) -> None:
    """The successor takes all actions as one batch, or one by one."""
    for kill_at in range(200):
        chance = random.Random(kill_at)
        log = Log()
        log.replicate(place.store, scenario(log))
        place.session.left, place.session.random = kill_at, chance
        try:
            log.replicate(place.store)
        except KilledError:
            killed = True
        else:
            killed = False
        finally:
            place.session.left = None
        assert_reads(place, log)
        assert_reads_of_older_marks(place, log)
        more = log.append("a", 40, 41) if kill_at % 3 == 0 else None
        if kill_at % 2:
            log.replicate(place.store, more)
        else:
            log.replicate_in_steps(place.store, random.Random(kill_at))
        assert_reads(place, log)
        place.store.expired(log.topic, 10_000_000, 10)
        assert_no_traces(place, log)
        if not killed:
            return
    pytest.fail("the batch has more writes than were tried")


def test_a_successor_with_shorter_batches_keeps_the_head_of_a_later_purge(place: Place) -> None:
    """Without that head it would take the journal for absent, and the next actions for those of a new life."""
    log = Log()
    log.append("a", *range(1, 8))
    log.replicate(place.store)
    between = log.append("a", 8)
    log.delete("a", 3)
    log.purge("a")
    place.session.left = 1
    with pytest.raises(KilledError):
        log.replicate(place.store)
    place.session.left = None
    log.replicate(place.store, between)
    assert place.raw("purging", "metajournal", log.topic) == [(True,)]
    assert_reads_of_older_marks(place, log)
    log.replicate_in_steps(place.store, random.Random(0), most=1)
    assert_reads(place, log)
    assert_no_traces(place, log)


SHORT = 8
SEEDS = [pytest.param(seed, marks=[] if seed < SHORT else pytest.mark.slow) for seed in range(200)]


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_again_and_again_in_a_random_history(place: Place, seed: int) -> None:
    """Each successor has batches of other sizes. Reads are right after every kill; at the end nothing is left."""
    chance = random.Random(seed)
    log = random_log(chance)
    place.session.random = chance
    while place.store.pointers(log.topic).get(0) != log.end:
        place.session.left = chance.randint(0, 40)
        try:
            log.replicate_in_steps(place.store, chance)
        except KilledError:
            assert_reads(place, log)
            assert_reads_of_older_marks(place, log)
        finally:
            place.session.left = None
    assert_reads(place, log)
    place.store.expired(log.topic, 10_000_000, 10)
    assert_no_traces(place, log)


@pytest.mark.parametrize("step", range(1, 9))
def test_a_process_is_killed_between_two_waves(place: Place, step: int) -> None:
    log = Log()
    log.replicate(place.store, purged_and_begun_again(log))
    pointer = place.store.pointers(log.topic)[0]
    worker = Peer(WORKER, place.server.url(place.keyspace), STRANDLINE_TEST_FAILPOINT=f"journal.apply:kill:{step}")
    worker.send("apply", log.topic, 0, pointer, log.end, log.after(pointer))
    assert worker.ended() == signal.SIGKILL
    worker.kill()
    assert_reads(place, log)
    log.replicate(place.store)
    assert_reads(place, log)
    place.store.expired(log.topic, 10_000_000, 10)
    assert_no_traces(place, log)


def assert_reads(place: Place, log: Log) -> None:
    for entity in "ab":
        assert read(place.store, log, entity) == model(log.actions, entity)


def assert_reads_of_older_marks(place: Place, log: Log) -> None:
    """A read that began before the last actions sees the journal at its mark, or after some of these actions.

    Or it fails because the journal was changed meanwhile. It never sees a state that there was not.
    """
    for entity in "ab":
        states = [model(log.actions[:count], entity) for count in range(1, len(log.actions) + 1)]
        try:
            stored = read_store(place.store, log, entity)
        except Unavailable:
            continue
        for offset in range(len(log.actions)):
            seen = read_log(stored, log, entity, Position(1, offset))
            assert seen in states[offset:], f"at the mark {offset}"


def assert_no_traces(place: Place, log: Log) -> None:
    """Only the events that can be read are stored, and only the heads of journals that are not absent."""
    expected = {entity: model(log.actions, entity) for entity in "ab"}
    # A segment without rows still has a link to the next one.
    rows = [(entity, seq_nr) for entity, seq_nr in place.raw("id, seq_nr", "journal", log.topic) if seq_nr]
    assert rows == [(entity, seq_nr) for entity in "ab" for seq_nr, _ in expected[entity][2]]
    heads = [entity for (entity,) in place.raw("id", "metajournal", log.topic)]
    assert heads == [entity for entity in "ab" if expected[entity][0] is not None]
