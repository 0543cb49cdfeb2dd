"""Writers of one journal through two nodes on Kafka, of which one is killed."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import pytest
from cluster import Cluster

import strandline
from services import Server, until
from strandline.errors import Conflict, OutcomeUnknown, Unavailable
from strandline.journal import Journal

WRITERS = 20
TOPIC = "accounts"
ENTITY = "ada"


class Race:
    """Every writer appends at the newest seqNr until there are `count` events. `won`: the winners of a seqNr."""

    def __init__(self, journals: list[Journal], count: int) -> None:
        self.won: dict[int, list[str]] = defaultdict(list)
        self.lost = self.repeated = 0
        self._journals = journals
        self._count = count
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        with self._lock:
            return max(self.won, default=0)

    def write(self, number: int) -> None:
        pointer = 0
        while pointer < self._count:
            append_id = f"{number}-{uuid4().hex}"
            try:
                pointer = self._append(number, append_id, pointer)
            except Conflict as error:
                pointer = error.info["seq_nr"]
                with self._lock:
                    self.lost += 1
            else:
                with self._lock:
                    self.won[pointer].append(append_id)

    def _append(self, number: int, append_id: str, expected: int) -> int:
        """An append whose outcome is unknown is repeated with its id at the other node."""
        for attempt in range(20):
            journal = self._journals[(number + attempt) % len(self._journals)]
            try:
                return journal.append(ENTITY, [append_id], expected=expected, append_id=append_id).seq_nr
            except (OutcomeUnknown, Unavailable):
                with self._lock:
                    self.repeated += 1
        raise AssertionError("no node answers")


@pytest.mark.parametrize("cluster", ["one broker"], indirect=True)
def test_one_writer_wins_each_seq_nr_while_a_node_is_killed(cluster: Cluster):
    """Losers get a conflict, and readers of every node have what the winners wrote."""
    nodes = [cluster.node(), cluster.node()]
    cluster.create(nodes[0].url, 1)
    count = 120
    with ExitStack() as stack:
        journals = [journal_of(node, stack) for node in nodes]
        race = Race(journals, count)
        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [pool.submit(race.write, number) for number in range(WRITERS)]
            until(lambda: race.length > count // 3, "a third of the events")
            nodes[0].kill()
            for writer in writers:
                writer.result(240)
        assert race.lost
        assert race.repeated
        winners = [(seq_nr, f'"{only}"'.encode()) for seq_nr, [only] in sorted(race.won.items())]
        assert [seq_nr for seq_nr, _ in winners] == [*range(1, len(winners) + 1)]
        assert len(winners) >= count
        for node in (nodes[1], cluster.node()):
            assert read(journal_of(node, stack)) == winners
        replicate(cluster)
        for node in (nodes[1], cluster.node()):
            assert read(journal_of(node, stack)) == winners


def journal_of(node: Server, stack: ExitStack) -> Journal:
    client = stack.enter_context(strandline.connect(node.url, timeout=5))
    client.journals.create(TOPIC, partitions=2)
    return client.journal(TOPIC)


def read(journal: Journal) -> list[tuple[int, bytes]]:
    return [(event.seq_nr, event.payload.data) for event in journal.read(ENTITY)]


def replicate(cluster: Cluster) -> None:
    with strandline.open(cluster.data) as sl:
        sl.journals.replicators.process().once()
