"""Replication of journals: from the pointers of the store, exactly once in effect, shared by processes."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator

import pytest
from journal_node import texts, write_all

from raw_records import append
from services import until
from strandline import progress
from strandline.engine.task_runner import InThisProcess
from strandline.errors import Conflict, Gap
from strandline.journal import actions, payloads
from strandline.journal.model import Append, Delete, NewEvent, Payload, Purge
from strandline.journal.replication_task import STORES
from strandline.log.ranges import close_storages
from strandline.log.records import NewRecords


@pytest.fixture(autouse=True)
def _what_tasks_opened() -> Iterator[None]:
    """Close the storages and stores that tasks have opened in this process."""
    yield
    close_storages()
    STORES.close()


def appends(entities: int, count: int, first: int = 1):
    """Actions of journals that get `count` events each."""
    for number in range(first, first + count):
        for entity in range(entities):
            event = NewEvent(Payload("json", b'{"n":%d}' % number), (), number)
            encoding, value = payloads.encode([event])
            yield f"e{entity}", Append(number, number, encoding), value


def expected(numbers: range) -> list[tuple[int, bytes]]:
    return [(number, b'{"n":%d}' % number) for number in numbers]


def lag(node, topic: str) -> int:
    return node.log.raw.lag(topic, node.journals.store().pointers(node.journals.topic(topic).id))


def stored(node, topic: str, entity: str) -> list[tuple[int, bytes | None]]:
    """What the store has of a journal, without the log."""
    found = node.journals.topic(topic)
    partition = node.journals.action_log.partition(found, entity)
    with node.journals.store().open(found.id, partition, entity) as journal:
        return texts(row.event for row in journal.rows(1, 10**9))


def test_everything_that_the_log_holds_is_replicated(node, topic, journal):
    write_all(node, topic, appends(20, 30))
    told = []
    node.journals.replicators.process().once(told.append)
    assert lag(node, topic) == 0
    assert all(stored(node, topic, f"e{n}") == expected(range(1, 31)) for n in range(20))
    assert (told[-1].event_type, told[-1].rows, told[-1].lag) == (topic, 600, {"0": 0, "1": 0})
    write_all(node, topic, [("e1", Delete(10), None), ("e2", Purge(), None), *appends(2, 1, first=31)])
    node.journals.replicators.process().once(told.append)
    assert told[-1].rows == 4
    assert stored(node, topic, "e1") == texts(journal.read("e1")) == expected(range(11, 32))
    assert stored(node, topic, "e2") == texts(journal.read("e2")) == []


def test_a_process_starts_where_the_store_is(node, opened, topic):
    """A second run has nothing to do, also in another process."""
    write_all(node, topic, appends(3, 5))
    node.journals.replicators.process().once()
    told = []
    opened().journals.replicators.process().once(told.append)
    assert [(one.rows, one.lag) for one in told] == [(0, {"0": 0, "1": 0})]


def test_a_task_that_runs_twice_is_refused(node, topic):
    write_all(node, topic, appends(3, 5))
    kept = []

    class Recording(InThisProcess):
        def run(self, tasks):
            kept.extend(tasks)
            return super().run(tasks)

    node.journals.replicators.process(Recording()).once()
    again = InThisProcess().run(kept)
    assert kept
    assert all(isinstance(result, Conflict) for result in again)
    assert stored(node, topic, "e1") == expected(range(1, 6))


def test_chunks_follow_each_other(node, topic, monkeypatch):
    """A task is written in several transactions, each of which starts at the end of the one before."""
    monkeypatch.setattr("strandline.journal.replication_task._CHUNK_RECORDS", 7)
    monkeypatch.setattr("strandline.journal.replication_plan._TASK_RECORDS", 50)
    write_all(node, topic, appends(10, 20))
    told = []
    node.journals.replicators.process().once(told.append)
    assert [one.rows for one in told] == sorted(one.rows for one in told)
    assert (told[-1].rows, lag(node, topic)) == (200, 0)
    assert all(stored(node, topic, f"e{n}") == expected(range(1, 21)) for n in range(10))


def test_records_that_cannot_be_decoded_do_not_stop_the_others(node, topic, journal):
    journal.append("a", [{"n": 1}], expected=0)
    partition = node.journals.action_log.partition(node.journals.topic(topic), "a")
    broken = [(actions.HEADER, b'{"append": {"range": 7}}')]
    unknown = [(actions.HEADER, b'{"later": {}}')]
    header = [(actions.HEADER, actions.encode(Append(2, 2, "json")))]
    records = NewRecords(
        5,
        [b"x", b"y", None, b"z", b"{", b"k"],
        [b"a", b"a", None, b"\xff", b"a", random.randbytes(5_000).hex().encode()],
        [broken, unknown, None, header, header, header],
    )
    append(node.log.raw, topic, partition, records)
    journal.append("a", [{"n": 3}], expected=2)
    told = []
    node.journals.replicators.process().once(told.append)
    letters = node.journals.dead_letters(topic)
    assert [letter.value for letter in letters] == [b"x", b"z", b"{", b"k"]
    assert letters[0].headers == ((actions.HEADER, b'{"append": {"range": 7}}'),)
    assert told[-1].details["dead_letters"] == 4
    assert told[-1].details["skipped"] == 2  # an unknown action, and a record without key and header
    assert [number for number, _ in stored(node, topic, "a")] == [1, 3]


def test_missing_records_stop_only_their_partition(node, topic, clock):
    """Records that were removed before they were replicated are a gap, which is never skipped."""
    write_all(node, topic, appends(20, 3))
    node.journals.replicators.process().once()
    write_all(node, topic, appends(20, 3, first=4))
    clock.advance(1_000)
    node.log.raw.trim(topic, {0: node.log.raw.end(topic, 0)}, clock.now_ms())
    write_all(node, topic, appends(20, 3, first=7))
    with pytest.raises(Gap, match="partition 0"):
        node.journals.replicators.process().once()
    found = node.journals.topic(topic)
    each = {f"e{n}": node.journals.action_log.partition(found, f"e{n}") for n in range(20)}
    lengths = {
        partition: {len(stored(node, topic, e)) for e, own in each.items() if own == partition}
        for partition in (0, 1)
    }
    assert lengths == {0: {3}, 1: {9}}


def test_two_processes_at_the_same_time(node, opened, topic, monkeypatch):
    """Both replicate everything. What one of them has written is refused for the other."""
    monkeypatch.setattr("strandline.journal.replication_task._CHUNK_RECORDS", 50)
    write_all(node, topic, appends(20, 50))
    processes = [opened().journals.replicators.process() for _ in range(2)]
    threads = [threading.Thread(target=process.once) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lag(node, topic) == 0
    assert all(stored(node, topic, f"e{n}") == expected(range(1, 51)) for n in range(20))


def test_a_process_runs_until_it_is_stopped(node, opened, topic, journal):
    stop = threading.Event()
    told = []
    process = opened().journals.replicators.process()
    thread = threading.Thread(target=process.run, args=(stop, told.append))
    thread.start()
    try:
        for number in range(1, 4):
            journal.append("a", [{"n": number}], expected=number - 1)
            until(lambda n=number: len(stored(node, topic, "a")) == n, "the replication of an append")
        until(
            lambda: any('"rows":3' in text for text in node.journals.replicators.progress().values()), "progress"
        )
        ((owner, text),) = node.journals.replicators.progress().items()
        assert owner == process.owner
        (one,) = [one for one in progress.parse(text) if one.event_type == topic]
        assert (one.rows, one.details) == (3, {"dead_letters": 0, "skipped": 0})
    finally:
        stop.set()
        thread.join()
    assert node.journals.replicators.progress() == {}


def test_processes_share_the_topics(node, opened):
    """Each has its share. When one ends, the other takes over."""
    names = [f"shared-{number}" for number in range(4)]
    for name in names:
        node.journals.create(name)
    stops = [threading.Event() for _ in range(2)]
    seen: list[set[str]] = [set(), set()]
    processes = [opened().journals.replicators.process() for _ in range(2)]
    threads = [
        threading.Thread(target=process.run, args=(stop, lambda one, own=own: own.add(one.event_type)))
        for process, stop, own in zip(processes, stops, seen, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:

        def shares() -> list[set[str]]:
            reports = node.journals.replicators.progress().values()
            return [{one["event_type"] for one in json.loads(text)} for text in reports]

        until(lambda: sorted(map(len, shares())) == [2, 2] and len(set.union(*shares())) == 4, "two shares")
        stops[0].set()
        threads[0].join()
        until(lambda: [*map(len, shares())] == [4], "one share")
    finally:
        for stop, thread in zip(stops, threads, strict=True):
            stop.set()
            thread.join()


def test_a_topic_that_was_created_again_starts_from_its_beginning(node, topic):
    write_all(node, topic, appends(2, 5))
    node.journals.replicators.process().once()
    node.log.delete(topic)
    node.journals.create(topic, partitions=2)
    write_all(node, topic, appends(2, 3))
    node.journals.replicators.process().once()
    assert stored(node, topic, "e1") == expected(range(1, 4))


def test_replication_goes_on_through_switches_of_storage(node, topic, journal):
    for number, storage in enumerate(["second", "first", "second"]):
        write_all(node, topic, appends(5, 4, first=1 + 8 * number))
        node.journals.replicators.process().once()
        write_all(node, topic, appends(5, 4, first=5 + 8 * number))
        node.log.admin.switch(topic, storage)
    node.journals.replicators.process().once()
    assert lag(node, topic) == 0
    for entity in range(5):
        assert stored(node, topic, f"e{entity}") == expected(range(1, 25))
