"""Reading equals the plain model for every short sequence of actions, however much of it is replicated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from journal_node import replicate, texts, write_all

from journal_actions import PlainJournal, Step, logged, sequences

Case = tuple[str, tuple[Step, ...], int]


def cases(lengths: range) -> Iterator[Case]:
    """Every sequence with every split, each as a journal of its own."""
    for length in lengths:
        for number, steps in enumerate(sequences(length)):
            for split in range(length + 1):
                yield f"{length}-{number}-{split}", steps, split


def written(entity: str, steps: tuple[Step, ...], part: slice):
    return [(entity, one.action, one.value) for one in logged(steps, entity)[part]]


def check(writer, reader, topic: str, chosen: list[Case]) -> None:
    """Replicate the first part of each sequence, leave the rest in the log, and read in another node."""
    write_all(writer, topic, (one for e, steps, split in chosen for one in written(e, steps, slice(split))))
    replicate(writer, topic)
    write_all(writer, topic, (one for e, steps, split in chosen for one in written(e, steps, slice(split, None))))
    journal = reader.journals.of(topic)
    for entity, steps, _ in chosen:
        expected = PlainJournal()
        for step in steps:
            expected.take(step)
        assert texts(journal.read(entity)) == [*expected.events.items()], (entity, steps)
        found = journal.pointer(entity)
        assert (found.seq_nr, found.delete_to) == (expected.seq_nr, expected.delete_to), (entity, steps)


def test_reading_equals_the_plain_model_wherever_replication_is(opened, topic):
    check(opened(), opened(), topic, [*cases(range(1, 4))])


@pytest.mark.parametrize("cached", [1, 7])
def test_reading_equals_the_plain_model_if_almost_nothing_is_cached(opened, topic, cached):
    """Eviction costs time and never changes an answer."""
    check(opened(), opened(cached_actions=cached), topic, [*cases(range(1, 3))])


@pytest.mark.parametrize(
    ("opened", "length"),
    [
        ("sqlite", 4),
        pytest.param("sqlite", 5, marks=pytest.mark.slow),
        *(
            pytest.param(engines, length, marks=pytest.mark.slow)
            for engines in ("kafka, postgres", "sqlite, cassandra")
            for length in (4, 5)
        ),
    ],
    indirect=["opened"],
)
def test_reading_equals_the_plain_model_for_every_longer_sequence(opened, topic, length):
    check(opened(), opened(cached_actions=1_000_000), topic, [*cases(range(length, length + 1))])
