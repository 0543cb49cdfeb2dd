"""Random histories of a few journals, in two nodes with tiny caches, against a plain model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from journal_node import replicate

from strandline.clock import ManualClock
from strandline.errors import Conflict
from strandline.journal import tail
from strandline.journal.model import NewEvent, Payload
from strandline.journal.settings import JournalSettings
from strandline.log.cursors import Position
from strandline.platform import Platform
from strandline.settings import Settings

NODES, ENTITIES = st.integers(0, 1), st.sampled_from("abc")
TOPIC = "orders"


class JournalMachine(RuleBasedStateMachine):
    """Two nodes write and read; replication stops anywhere; a node that pauses may have to catch up."""

    @initialize(caches=st.tuples(st.integers(1, 6), st.integers(1, 100)), idle=st.sampled_from([0, 1000]))
    def begin(self, caches, idle):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tail, "_IDLE_SECONDS", idle)
        self.data = Path(tempfile.mkdtemp())
        self.idle = idle
        self.clock = clock = ManualClock(1_700_000_000_000)
        self.nodes = [
            Platform(self.data, Settings(journal=JournalSettings(cached_actions=cached)), clock)
            for cached in caches
        ]
        self.nodes[0].journals.create(TOPIC, partitions=1)
        self.expected: dict[str, tuple[int | None, dict[int, bytes]]] = dict.fromkeys("abc", (None, {}))
        self.number = 0

    def journal(self, node):
        return self.nodes[node].journal(TOPIC)

    @rule(node=NODES, entity=ENTITIES, count=st.integers(1, 3), wrong=st.sampled_from([0, 0, 0, 1, -1]))
    def append(self, node, entity, count, wrong):
        pointer, events = self.expected[entity]
        saw = max(0, (pointer or 0) + wrong)
        self.number += 1
        data = b"%d" % self.number
        new = [NewEvent(Payload("json", data)) for _ in range(count)]
        if saw != (pointer or 0):
            with pytest.raises(Conflict) as caught:
                self.journal(node).append(entity, new, expected=saw)
            assert caught.value.info["seq_nr"] == pointer
            return
        done = self.journal(node).append(entity, new, expected=saw)
        assert done.seq_nr == saw + count
        self.expected[entity] = (done.seq_nr, {**events, **dict.fromkeys(range(saw + 1, saw + count + 1), data)})

    @rule(node=NODES, entity=ENTITIES, to=st.integers(1, 8))
    def delete(self, node, entity, to):
        pointer, events = self.expected[entity]
        self.journal(node).delete(entity, to)
        self.expected[entity] = (pointer, {n: data for n, data in events.items() if n > to})

    @rule(node=NODES, entity=ENTITIES)
    def purge(self, node, entity):
        self.journal(node).purge(entity)
        self.expected[entity] = (None, {})

    @rule(node=NODES, back=st.integers(0, 5))
    def replicate(self, node, back):
        """Up to a few records before the end."""
        end = self.nodes[node].log.raw.end(TOPIC, 0)
        replicate(self.nodes[node], TOPIC, {0: Position(end.order, end.offset - back)})

    @precondition(lambda self: self.idle == 0)
    @rule(node=NODES)
    def trim(self, node):
        """Remove from the log what is replicated. A node that did not pause is not behind what was removed."""
        journals = self.nodes[node].journals
        pointers = journals.store().pointers(journals.topic(TOPIC).id)
        self.nodes[node].log.raw.trim(TOPIC, pointers, self.clock.now_ms() + 1)

    @rule(node=NODES, entity=ENTITIES, first=st.integers(1, 5))
    def read(self, node, entity, first):
        pointer, events = self.expected[entity]
        found = {event.seq_nr: event.payload.data for event in self.journal(node).read(entity, first)}
        assert found == {n: data for n, data in events.items() if n >= first}
        assert [*found] == sorted(found)
        assert self.journal(node).pointer(entity).seq_nr == pointer

    @invariant()
    def both_nodes_agree(self):
        if hasattr(self, "nodes") and self.number % 5 == 4:
            for entity in "abc":
                for node in (0, 1):
                    self.read(node, entity, 1)

    def teardown(self):
        for node in getattr(self, "nodes", ()):
            node.close()
        if hasattr(self, "data"):
            self.patch.undo()
            shutil.rmtree(self.data)


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
