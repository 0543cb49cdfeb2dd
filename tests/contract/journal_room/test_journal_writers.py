"""Writers that compete, in one node and in several."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from journal_node import replicate, texts

from strandline.errors import Conflict, OutcomeUnknown, Unavailable
from strandline.journal.model import NewEvent, Payload

WRITERS = 20


def compete(journals_of_nodes, entity, count):
    """Let writers append at the newest seqNr until there are `count` events. Returns who won each seqNr."""
    won: dict[int, list[int]] = {}
    lost = []
    lock = threading.Lock()

    def write(number):
        journal = journals_of_nodes[number % len(journals_of_nodes)]
        pointer = 0
        while pointer < count:
            try:
                pointer = journal.append(entity, [number], expected=pointer).seq_nr
            except Conflict as error:
                pointer = error.info["seq_nr"]
                lost.append(number)
            else:
                with lock:
                    won.setdefault(pointer, []).append(number)

    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(write, number) for number in range(WRITERS)]:
            done.result(120)
    assert lost
    return won


def test_exactly_one_writer_wins_each_seq_nr_and_every_reader_agrees(opened, topic):
    """In two nodes, while a third one replicates."""
    nodes = [opened(), opened(), opened()]
    stop = threading.Event()

    def keep_replicating():
        while not stop.is_set():
            replicate(nodes[2], topic)

    replicator = threading.Thread(target=keep_replicating)
    replicator.start()
    try:
        won = compete([node.journals.of(topic) for node in nodes[:2]], "a", 30)
    finally:
        stop.set()
        replicator.join()
    winners = [(seq_nr, b"%d" % who) for seq_nr, [who] in sorted(won.items())]
    assert [seq_nr for seq_nr, _ in winners] == [*range(1, len(winners) + 1)]
    for node in [*nodes, opened()]:
        assert texts(node.journals.of(topic).read("a")) == winners
    replicate(nodes[2], topic)
    for node in [*nodes, opened()]:
        assert texts(node.journals.of(topic).read("a")) == winners


def test_appends_of_many_threads_to_many_journals(opened, topic):
    """Every append is answered from the fold up to its own cursor, whatever other threads write."""
    one, other = opened(), opened(cached_actions=5)

    def write(number):
        journal = (one, other)[number % 2].journals.of(topic)
        for seq_nr in range(1, 21):
            journal.append(f"e{number % 8}", [NewEvent(Payload("json", b"1"), (), 100 * seq_nr + number)])

    with ThreadPoolExecutor(16) as pool:
        results = [pool.submit(write, number) for number in range(16)]
    conflicts = sum(isinstance(result.exception(), Conflict) for result in results)
    unexpected = [error for result in results if (error := result.exception()) and not isinstance(error, Conflict)]
    assert unexpected == []
    assert conflicts < len(results)
    for number in range(8):
        found = [[event.seq_nr for event in node.journals.of(topic).read(f"e{number}")] for node in (one, other)]
        assert found[0] == found[1] == sorted(found[0])


def test_a_retry_at_the_same_time_as_the_append_is_answered_as_the_append(opened, topic):
    nodes = [opened(), opened()]
    for number in range(10):
        with ThreadPoolExecutor(8) as pool:
            calls = [
                pool.submit(nodes[n % 2].journals.of(topic).append, f"e{number}", [1], expected=0, append_id="x")
                for n in range(8)
            ]
            assert len({call.result(60) for call in calls}) == 1


def test_an_append_whose_fold_cannot_be_read_has_an_unknown_outcome(opened, topic, monkeypatch):
    """It is stored, and a retry has its answer."""
    one, other = opened(), opened()
    one.journal(topic).append("a", [1], expected=0)
    other.journal(topic).append("a", [2], expected=1)

    def refuse(*_):
        raise Unavailable("the storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(one.log.raw, "read", refuse)
        with pytest.raises(OutcomeUnknown):
            one.journal(topic).append("a", [3], expected=2, append_id="x")
    done = one.journal(topic).append("a", [3], expected=2, append_id="x")
    assert done.seq_nr == 3
    assert texts(other.journal(topic).read("a")) == [(1, b"1"), (2, b"2"), (3, b"3")]


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_appends_are_answered_without_reading_what_the_node_wrote(opened, topic, monkeypatch):
    """The thread that stores a group folds it for all writers."""
    node = opened()
    journal = node.journals.of(topic)
    for number in range(8):
        journal.append(f"e{number}", [0], expected=0)

    def refuse(*_):
        raise AssertionError("the log was read")

    monkeypatch.setattr(node.log.raw, "read", refuse)

    def write(number):
        for seq_nr in range(2, 22):
            journal.append(f"e{number}", [number], expected=seq_nr - 1)
            with pytest.raises(Conflict):
                journal.append(f"e{number}", [number], expected=seq_nr - 1)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(write, number) for number in range(8)]:
            done.result(60)


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_an_append_whose_head_cannot_be_loaded_leaves_nothing_behind(opened, topic, monkeypatch):
    """Neither in the log nor in memory, where a journal with an append in progress is not forgotten."""
    node = opened()
    journal, store = node.journals.of(topic), node.journals.store()

    def refuse(*_):
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "open", refuse)
        with pytest.raises(Unavailable):
            journal.append("a", [1], expected=0)
    assert journal.append("a", [1], expected=0).seq_nr == 1
    found = node.journals.topic(topic)
    tail = node.journals.action_log.tail(found, node.journals.action_log.partition(found, "a"))
    assert not tail._awaited


def test_a_node_that_paused_answers_correctly(opened, topic):
    """Meanwhile others wrote, replicated and purged."""
    paused, other = opened(), opened()
    slow, fast = paused.journals.of(topic), other.journals.of(topic)
    for entity in "abcdef":
        slow.append(entity, [1, 2], expected=0)
    for entity in "abcdef":
        fast.append(entity, [3], expected=2)
    fast.purge("b")
    fast.purge("c")
    fast.append("c", ["new"], expected=0)
    fast.delete("d", 2)
    replicate(other, topic)
    fast.append("e", [4], expected=3)
    for entity, pointer in {"a": 3, "b": None, "c": 1, "d": 3, "e": 4}.items():
        with pytest.raises(Conflict) as caught:
            slow.append(entity, [9], expected=2)
        assert caught.value.info["seq_nr"] == pointer
    slow.append("b", ["again"], expected=0)
    assert [len([*slow.read(entity)]) for entity in "abcdef"] == [3, 1, 1, 1, 4, 3]
