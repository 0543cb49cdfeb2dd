"""Actions of concurrent writers are stored together, and each writer gets its own answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from services import until
from strandline.errors import Conflict, OutcomeUnknown, Unavailable
from strandline.journal import tail

WRITERS = 8


@pytest.fixture
def held(journals, monkeypatch):
    """The first append of the node waits until `go` is called; `calls` has the records of each by partition."""
    raw = journals.action_log.raw
    original, go, calls = raw.append, threading.Event(), []

    def append(topic, batches):
        calls.append({partition: len(records) for partition, records in batches.items()})
        if len(calls) == 1:
            assert go.wait(30)
        return original(topic, batches)

    monkeypatch.setattr(raw, "append", append)
    return calls, go


def queued(journals, journal, count):
    """Wait until as many writes are behind the first one."""
    line = journals.action_log._line(journals.topic(journal.name))
    until(lambda: len(line._queue) == count, "the writers to queue")


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_writers_that_wait_for_the_same_file_are_stored_by_one_commit(journals, journal, held):
    """Also those of other partitions. Conflicts are found in the group, as if each had been alone."""
    calls, go = held
    with ThreadPoolExecutor(WRITERS + 2) as pool:
        first = pool.submit(journal.append, "first", [1], expected=0)
        until(lambda: calls, "the first append")
        others = [pool.submit(journal.append, f"e{n}", [n], expected=0) for n in range(WRITERS)]
        queued(journals, journal, WRITERS)
        late = pool.submit(journal.append, "e0", ["too late"], expected=0)
        queued(journals, journal, WRITERS + 1)
        go.set()
        assert {one.result(30).seq_nr for one in [first, *others]} == {1}
        with pytest.raises(Conflict):
            late.result(30)
    assert [sum(call.values()) for call in calls] == [1, WRITERS + 1]
    assert set(calls[1]) == {0, 1}
    assert [[event.payload.data for event in journal.read(f"e{n}")] for n in range(WRITERS)] == [
        [b"%d" % n] for n in range(WRITERS)
    ]


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_a_partition_that_fails_is_the_answer_to_its_writers_only(journals, journal, held, monkeypatch):
    """The others are stored, and told so."""
    calls, go = held
    raw = journals.action_log.raw
    append = raw.append

    def half(topic, batches):
        stored = dict(append(topic, batches))
        return stored if len(batches) == 1 else {**stored, 1: Unavailable("away")}

    monkeypatch.setattr(raw, "append", half)
    partition_of = {
        f"e{n}": journals.action_log.partition(journals.topic(journal.name), f"e{n}") for n in range(WRITERS)
    }
    with ThreadPoolExecutor(WRITERS + 1) as pool:
        pool.submit(journal.append, "first", [1], expected=0)
        until(lambda: calls, "the first append")
        asked = {entity: pool.submit(journal.append, entity, [1], expected=0) for entity in partition_of}
        queued(journals, journal, WRITERS)
        go.set()
        failed = {entity for entity, one in asked.items() if isinstance(one.exception(30), Unavailable)}
    assert failed == {entity for entity, partition in partition_of.items() if partition == 1}
    assert 0 < len(failed) < WRITERS


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_an_append_that_was_written_and_cannot_be_folded_has_an_unknown_outcome(journal, monkeypatch):
    """It is not called failed. The next append reads it from the log."""
    journal.append("a", [1], expected=0)

    def broken(*_, **__):
        raise RuntimeError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(tail, "fold", broken)
        with pytest.raises(OutcomeUnknown, match="a fault"):
            journal.append("a", [2], expected=1)
    assert journal.append("a", [3], expected=2).seq_nr == 3


def test_an_append_goes_to_the_topic_that_was_created_again(opened, journals, journal, topic):
    """The node still knows the deleted one, and must neither write there nor refuse the append."""
    journal.append("a", [1], expected=0)
    other = opened()
    other.log.delete(topic)
    other.journals.create(topic, partitions=2)
    assert journal.append("a", ["new"], expected=0).seq_nr == 1
    assert [event.payload.data for event in other.journals.of(topic).read("a")] == [b'"new"']
