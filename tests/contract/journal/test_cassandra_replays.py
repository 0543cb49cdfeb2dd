"""On Cassandra, what a replicator writes has the same effect whenever, however often and in whichever order."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence

import pytest
from cassandra_place import KilledError, Log, Place, model, random_log, read

from services.cassandra import CassandraServer
from strandline.engine.cassandra import CassandraSession, Write
from strandline.errors import Conflict

#: Pairs of journals in one log: each has its own random history and its own random order of writes.
PAIRS = 50
SHORT, FULL = 10, 3 * PAIRS
#: So many writes are sent at a time, in no particular order.
AT_ONCE = 200


@pytest.fixture(scope="module")
def place(cassandra: CassandraServer) -> Iterator[Place]:
    made = Place(cassandra)
    yield made
    made.close()


def replicated(place: Place, log: Log, chance: random.Random) -> list[Write]:
    """Replicate the log to its topic; returns the writes."""
    place.session.written = []
    log.replicate_in_steps(place.store, chance, len(log.actions) // 4)
    return place.session.written


def moved(writes: list[Write], source: str, target: str) -> list[Write]:
    """The same writes for another topic."""
    old, new = uuid.UUID(source).bytes, uuid.UUID(target).bytes
    return [write._replace(values=[new if value == old else value for value in write.values]) for write in writes]


def zombie_writes(place: Place, log: Log, chance: random.Random) -> list[Write]:
    """What other replicators would write: one with other batches, and one that is killed and restarted."""
    twin = Log()
    twin.actions = log.actions
    writes = replicated(place, twin, chance)
    killed = Log()
    killed.actions = log.actions
    place.session.written, place.session.random = [], chance
    while True:
        place.session.left = chance.randint(0, 12 * len(log.actions) // 20)
        try:
            killed.replicate_in_steps(place.store, chance, len(log.actions) // 4)
        except KilledError:
            continue
        finally:
            place.session.left = None
        break
    return moved(writes, twin.topic, log.topic) + moved(place.session.written, killed.topic, log.topic)


def assert_as_the_model(place: Place, log: Log, entities: Sequence[str]) -> None:
    for entity in entities:
        assert read(place.store, log, entity) == model(log.actions, entity), entity


@pytest.mark.parametrize(
    ("seed", "pairs"),
    [(0, SHORT), *(pytest.param(seed, PAIRS, marks=pytest.mark.slow) for seed in range(FULL // PAIRS))],
)
def test_a_zombie_replicator_that_repeats_old_writes_in_any_order_changes_nothing(
    place: Place, seed: int, pairs: int
) -> None:
    """Every write twice, over a topic that is replicated to its end, and then into an empty topic."""
    chance = random.Random(seed)
    entities = [f"{name}{number}" for number in range(pairs) for name in "ab"]
    log = random_log(chance, 24 * pairs, entities)
    writes = replicated(place, log, chance)
    assert_as_the_model(place, log, entities)
    pointer = place.store.pointers(log.topic)
    repeated = [*writes, *zombie_writes(place, log, chance)] * 2
    chance.shuffle(repeated)
    for start in range(0, len(repeated), AT_ONCE):
        CassandraSession.write(place.session, repeated[start : start + AT_ONCE])
        assert place.store.pointers(log.topic) == pointer
    assert_as_the_model(place, log, entities)
    # And the same writes alone, in this order, into an empty topic.
    fresh = Log()
    fresh.actions = log.actions
    for start in range(0, len(repeated), AT_ONCE):
        CassandraSession.write(place.session, moved(repeated[start : start + AT_ONCE], log.topic, fresh.topic))
    assert_as_the_model(place, fresh, entities)


def test_a_batch_that_does_not_start_at_the_pointer_is_refused_and_changes_nothing(place: Place) -> None:
    log = Log()
    log.append("a", 1, 2)
    log.replicate(place.store)
    first = log.end
    log.append("a", 3)
    log.replicate(place.store)
    place.session.written = []
    with pytest.raises(Conflict, match="replicated up to"):
        place.store.apply(log.topic, 0, first, log.end, log.after(first))
    with pytest.raises(Conflict):
        place.store.apply(log.topic, 0, None, log.end, log.actions)
    assert place.session.written == []
