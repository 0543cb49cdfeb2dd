"""Every short sequence of actions, replicated in every split, results in the plain model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from journal_place import TOPIC, at, renumbered

from journal_actions import PlainJournal, logged, sequences
from strandline.journal.model import MAX_SEQ_NR, LoggedAction
from strandline.journal.storage import JournalStore


def found(store: JournalStore, topic: str, entity: str) -> tuple[object, ...]:
    with store.open(topic, 0, entity) as journal:
        events = {row.event.seq_nr: row.event.payload.data for row in journal.rows(1, MAX_SEQ_NR)}
        head = journal.head
        return (head and head.seq_nr, head and head.delete_to, events)


def plain(steps) -> tuple[object, ...]:
    journal = PlainJournal()
    for step in steps:
        journal.take(step)
    return (journal.seq_nr, journal.delete_to, journal.events)


def lengths() -> Iterator[object]:
    """A read from Cassandra takes longer than one from a file."""
    for engine, short in {"sqlite": 4, "postgres": 4, "cassandra": 3}.items():
        for length in range(1, 6):
            yield pytest.param(engine, length, marks=[] if length <= short else pytest.mark.slow)


@pytest.mark.parametrize(("place", "length"), [*lengths()], indirect=["place"])
def test_every_sequence_and_every_split(store, length):
    """One journal for every sequence and split: the first parts are one batch, the rest is a second one."""
    cases = [
        (f"{n}/{split}", steps, split) for n, steps in enumerate(sequences(length)) for split in range(length)
    ]
    records = [logged(steps, entity) for entity, steps, _ in cases]
    # Offsets rise over the first parts of all journals, then over the rest.
    firsts = [actions[: split + 1] for actions, (*_, split) in zip(records, cases, strict=True)]
    rests = [actions[split + 1 :] for actions, (*_, split) in zip(records, cases, strict=True)]
    numbered = renumbered([*firsts, *rests])
    batches = [[*chain(*numbered[: len(firsts)])], [*chain(*numbered[len(firsts) :])]]
    after = None
    for batch in batches:
        until = batch[-1].cursor if batch else after
        store.apply(TOPIC, 0, after, until, batch)
        after = until
    for entity, steps, split in cases:
        assert found(store, TOPIC, entity) == plain(steps), (steps, split)


def test_random_journals_in_random_batches(store):
    """A log of several journals, replicated in batches of any size. Old batches that come again are refused."""
    topics = iter(range(10**6))

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.topic = f"topic {next(topics)}"
            self.steps: dict[str, list[tuple[str, int]]] = {}
            self.log: list[LoggedAction] = []
            self.replicated = 0

        @rule(
            entity=st.sampled_from("abc"),
            kind=st.sampled_from(["append", "append", "delete", "mark", "purge"]),
            number=st.integers(1, 4),
        )
        def write(self, entity: str, kind: str, number: int) -> None:
            steps = self.steps.setdefault(entity, [])
            steps.append((kind, number))
            cursor = at(len(self.log))
            self.log.append(msgspec.structs.replace(logged(tuple(steps), entity)[-1], cursor=cursor))

        @rule(count=st.integers(1, 6))
        def replicate(self, count: int) -> None:
            batch = self.log[self.replicated : self.replicated + count]
            if batch:
                after = at(self.replicated - 1) if self.replicated else None
                store.apply(self.topic, 0, after, batch[-1].cursor, batch)
                self.replicated += len(batch)

        @invariant()
        def the_store_has_what_was_replicated(self) -> None:
            done = self.log[: self.replicated]
            assert store.pointers(self.topic).get(0) == (done[-1].cursor if done else None)
            for entity, steps in self.steps.items():
                count = sum(one.entity == entity for one in done)
                assert found(store, self.topic, entity) == plain(steps[:count])

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=40, stateful_step_count=30, derandomize=True, deadline=None)
    )
