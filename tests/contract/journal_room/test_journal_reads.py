"""Reads beside replication, switches and eviction, and what they cost."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from journal_node import replicate, texts, write_all

from strandline.errors import StrandlineError
from strandline.journal import payloads
from strandline.journal.model import Append, Mark, NewEvent, Payload, Purge


def new_append(entity, *numbers, data=b"1"):
    encoding, value = payloads.encode([NewEvent(Payload("json", data), (), n) for n in numbers])
    return entity, Append(numbers[0], numbers[-1], encoding), value


def records_of(node, topic):
    """All records of a topic, as (partition, header)."""
    found = []
    for partition in range(node.journals.topic(topic).partitions):
        end = node.log.raw.end(topic, partition)
        for batch in node.log.raw.read(topic, partition, None, end):
            found += [(partition, record["headers"][0]["value"]) for record in batch.records.to_pylist()]
    return found


def test_a_read_writes_at_most_one_small_mark(node, journal, topic):
    journal.append("a", [1], expected=0)
    before = len(records_of(node, topic))
    [*journal.read("a")]
    after = records_of(node, topic)
    assert len(after) - before <= 1
    assert all(b'"mark"' in header and len(header) < 200 for _, header in after[before:])


@pytest.mark.parametrize("opened", ["kafka, postgres"], indirect=True)
def test_reads_that_begin_at_the_same_time_share_a_mark(node, journals, journal, topic):
    journal.append("a", [1], expected=0)
    before = len(records_of(node, topic))
    start = threading.Barrier(32)

    def read():
        start.wait()
        return texts(journal.read("a"))

    with ThreadPoolExecutor(32) as pool:
        found = [call.result(60) for call in [pool.submit(read) for _ in range(32)]]
    assert found == [[(1, b"1")]] * 32
    assert len(records_of(node, topic)) - before < 32


def test_reads_stay_correct_while_the_replicator_runs_and_the_topic_switches_storage(opened, topic):
    writer, reader, replicator = opened(), opened(), opened()
    stop = threading.Event()

    def keep_replicating():
        while not stop.is_set():
            replicate(replicator, topic)

    thread = threading.Thread(target=keep_replicating)
    thread.start()
    try:
        for number in range(1, 41):
            writer.journal(topic).append("a", [number], expected=number - 1)
            if number % 10 == 0:
                writer.journal(topic).delete("a", number - 5)
            if number in {15, 30}:
                writer.log.admin.switch(topic, "second" if number == 15 else "first")
            found = [event.seq_nr for event in reader.journal(topic).read("a")]
            assert found == [*range(1 if number < 10 else number // 10 * 10 - 4, number + 1)]
            assert reader.journal(topic).pointer("a").seq_nr == number
    finally:
        stop.set()
        thread.join()


def test_everything_is_read_while_the_replicator_is_stopped_and_after_it_caught_up(opened, topic):
    node = opened(cached_actions=10)
    journal = node.journal(topic)
    for number in range(1, 31):
        journal.append("a", [number], expected=number - 1)
        journal.append(f"b{number % 3}", [NewEvent(seq_nr=number)])
    journal.delete("a", 3)
    journal.purge("b0")
    expected = [*range(4, 31)]

    def found():
        return [event.seq_nr for event in journal.read("a")], [*journal.read("b0")], journal.pointer("a").seq_nr

    assert found() == (expected, [], 30)
    replicate(node, topic)
    assert found() == (expected, [], 30)
    journal.append("b0", ["again"], expected=0)
    assert len([*journal.read("b0")]) == 1


def test_a_value_that_cannot_be_decoded_is_left_out_before_and_after_replication(node, journal, topic):
    write_all(node, topic, [("a", Append(1, 1), b"{"), new_append("a", 2)])
    for _ in range(2):
        assert texts(journal.read("a")) == [(2, b"1")]
        assert journal.pointer("a").seq_nr == 2
        replicate(node, topic)
    assert len(node.journals.dead_letters(topic)) == 1


def test_a_gap_in_the_log_fails_reads_and_appends(opened, node, journal, topic, clock):
    """Records were removed before they were replicated."""
    for number in range(5):
        journal.append("a", [number], expected=number)
    entry = node.log.types.entry(topic)
    ends = {partition: node.log.raw.end(topic, partition).offset for partition in range(2)}
    node.log._storages.get("first").purge(entry.active.topic, clock.now_ms() + 1, ends)
    other = opened().journal(topic)
    for call in (
        lambda: [*other.read("a")],
        lambda: other.pointer("a"),
        lambda: other.append("a", [5], expected=5),
    ):
        with pytest.raises(StrandlineError) as caught:
            call()
        assert caught.value.code == "gap"


def test_records_that_were_replicated_and_removed_are_not_missed(opened, topic, clock):
    """A node read some of them and wrote the rest itself, and then reads what another node writes."""
    own, other = opened(), opened()
    other.journal(topic).append("a", [1], expected=0)
    assert own.journal(topic).append("a", [2], expected=1).seq_nr == 2
    for number in range(2, 6):
        own.journal(topic).append("a", [number], expected=number)
    replicate(own, topic)
    clock.advance(2 * 86_400_000)
    own.journals.upkeep.run()
    partition = own.journals.action_log.partition(own.journals.topic(topic), "a")
    assert own.log.raw.first(topic, partition).offset > 4
    late = opened().journal(topic)
    late.append("a", [7], expected=6)
    assert [event.seq_nr for event in own.journal(topic).read("a")] == [*range(1, 8)]
    late.append("a", [8], expected=7)
    assert own.journal(topic).append("a", [9], expected=8).seq_nr == 9


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
@pytest.mark.parametrize("records", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_long_tail_of_other_journals_is_read_with_flat_memory(opened, topic, records):
    """The memory that a read needs does not depend on the length of the tail."""
    node = opened(cached_actions=1_000)
    write_all(node, topic, [new_append("a", 1), new_append("a", 2)])
    others = (new_append(f"other-{n}", 1) for n in range(records))
    write_all(node, topic, others)
    write_all(node, topic, [new_append("a", 3)])
    journal = node.journal(topic)
    [*journal.read("a")]
    tracemalloc.start()
    assert [event.seq_nr for event in journal.read("a")] == [1, 2, 3]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 << 20


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("events", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_long_journal_is_streamed_with_flat_memory(opened, topic, replicated, events):
    """20 MB or 1 GB of events. At most 8 MiB are kept from the log, and of further appends only the cursors."""
    node = opened(cached_actions=1_000)
    data = b'"' + b"x" * 1_000 + b'"'
    write_all(node, topic, (new_append("a", n, data=data) for n in range(1, events + 1)))
    if replicated:
        replicate(node, topic)
    journal = node.journal(topic)
    tracemalloc.start()
    count = sum(1 for _ in journal.read("a"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == events
    assert peak < (16 << 20 if replicated else (32 << 20) + 12 * events)


def test_marks_and_purges_of_other_writers_are_read(node, journal, topic):
    write_all(
        node, topic, [("a", Mark("m"), None), new_append("a", 1), ("a", Purge(), None), ("a", Mark("m"), None)]
    )
    assert [*journal.read("a")] == []
    write_all(node, topic, [new_append("a", 1, 2)])
    assert [event.seq_nr for event in journal.read("a")] == [1, 2]
