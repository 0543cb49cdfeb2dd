"""The journal room as its users see it."""

from __future__ import annotations

import pytest
from journal_node import replicate, texts

from raw_records import append
from strandline.errors import Conflict, Invalid, InvalidCursor, NotFound, OutcomeUnknown, TooLarge, Unavailable
from strandline.journal.model import MAX_SEQ_NR, NewEvent, Payload, Pointer, Snapshot
from strandline.log import cursors


@pytest.fixture(params=["in the log", "replicated"])
def settled(request, node, topic):
    """A function that replicates everything, or does nothing."""
    return (lambda: replicate(node, topic)) if request.param == "replicated" else (lambda: None)


def numbers(journal, entity="a", *more, **limits):
    return [event.seq_nr for event in journal.read(entity, *more, **limits)]


def conflict(journal, events, **conditions):
    """The members of the answer to an append that must be void."""
    with pytest.raises(Conflict) as caught:
        journal.append("a", events, **conditions)
    return caught.value


# -- topics


def test_a_topic_is_created_once(journals, topic):
    made = journals.create(topic, partitions=2)
    assert (made.name, made.partitions, made.kafka_topic) == (topic, 2, None)
    assert made in journals.topics()
    assert journals.put(topic, partitions=2) == (made, False)
    with pytest.raises(Conflict):
        journals.create(topic, partitions=3)


def test_a_topic_that_does_not_exist_is_not_found(journals):
    journal = journals.of("absent")
    for call in (
        lambda: journal.append("a", [1], expected=0),
        lambda: journal.read("a"),
        lambda: journal.pointer("a"),
        lambda: journal.delete("a", 1),
        lambda: journal.purge("a"),
        lambda: journal.save_snapshot("a", 1, {}),
        lambda: journal.snapshot("a"),
        lambda: journal.delete_snapshot("a", 1),
        lambda: journals.dead_letters("absent"),
    ):
        with pytest.raises(NotFound):
            call()


# -- appends


def test_events_are_numbered_from_what_the_writer_expected(journal, settled):
    first = journal.append("a", [{"n": 1}, {"n": 2}], expected=0)
    settled()
    second = journal.append("a", [{"n": 3}], expected=2)
    assert (first.seq_nr, second.seq_nr) == (2, 3)
    assert first.cursor < second.cursor
    assert texts(journal.read("a")) == [(1, b'{"n":1}'), (2, b'{"n":2}'), (3, b'{"n":3}')]
    assert journal.pointer("a") == Pointer(3, None, first.cursor)


def test_seq_nrs_may_have_gaps_and_start_anywhere(journal, settled):
    journal.append("a", [NewEvent(seq_nr=5), NewEvent(seq_nr=9)])
    settled()
    journal.append("a", [NewEvent(seq_nr=MAX_SEQ_NR)])
    settled()
    assert numbers(journal) == [5, 9, MAX_SEQ_NR]
    assert journal.pointer("a").seq_nr == MAX_SEQ_NR
    assert journal.pointer("a").delete_to is None


def test_an_event_is_read_as_it_was_appended(journal, settled, clock):
    kept = [
        NewEvent(Payload("json", b'{ "n": 1e400 }'), ("red", "blue"), 1),
        NewEvent(Payload("text", "ä".encode()), (), 2),
        NewEvent(None, ("x",), 3),
    ]
    binary = [NewEvent(Payload("binary", b"\x00\xff"), (), 4), NewEvent(Payload("json", b"null"), (), 5)]
    journal.append("a", kept, metadata={"by": "ada"})
    journal.append("a", binary)
    settled()
    found = [*journal.read("a")]
    assert [(e.payload, e.tags, e.seq_nr) for e in found] == [(e.payload, e.tags, e.seq_nr) for e in kept + binary]
    assert [event.metadata for event in found] == [b'{"by":"ada"}'] * 3 + [None] * 2
    assert {event.timestamp_ms for event in found} == {clock.now_ms()}


def test_a_writer_that_saw_another_pointer_gets_a_conflict_with_the_pointer(journal, settled):
    assert conflict(journal, [1], expected=4).info["seq_nr"] is None
    journal.append("a", [1, 2], expected=0)
    settled()
    for expected in (0, 1, 3):
        assert conflict(journal, [1], expected=expected).info["seq_nr"] == 2
    assert numbers(journal) == [1, 2]


def test_an_append_must_start_above_the_pointer(journal, settled):
    journal.append("a", [1, 2], expected=0)
    settled()
    assert conflict(journal, [NewEvent(seq_nr=2), NewEvent(seq_nr=3)]).info["seq_nr"] == 2
    journal.append("a", [NewEvent(seq_nr=3)])
    assert numbers(journal) == [1, 2, 3]


def test_a_retry_has_the_answer_of_the_first_append(journal, settled):
    first = journal.append("a", [1, 2], expected=0, append_id="x")
    settled()
    assert journal.append("a", [1, 2], expected=0, append_id="x") == first
    journal.append("a", [3], expected=2, append_id="y")
    assert journal.append("a", [1, 2], expected=0, append_id="x") == first
    settled()
    assert journal.append("a", [1, 2], expected=0, append_id="x") == first
    conflict(journal, [1, 2], expected=0, append_id="z")
    assert numbers(journal) == [1, 2, 3]


def test_a_retry_with_other_events_has_the_answer_of_the_first_append(journal, settled):
    """Nothing is acknowledged that is not stored, also if another append follows directly."""
    first = journal.append("a", [1, 2], expected=0, append_id="x")
    settled()
    for events in ([1], [1, 2, 3]):
        assert journal.append("a", events, expected=0, append_id="x") == first
    journal.append("a", [3], expected=2, append_id="x")
    assert journal.append("a", [1, 2, 3], expected=0, append_id="x") == first
    assert numbers(journal) == [1, 2, 3]


def test_an_append_id_of_an_earlier_life_is_no_retry(journal, settled):
    journal.append("a", [1], expected=0, append_id="x")
    journal.purge("a")
    settled()
    again = journal.append("a", [1], expected=0, append_id="x")
    assert journal.pointer("a").since == again.cursor


@pytest.mark.parametrize(
    ("events", "more"),
    [
        ([], {"expected": 0}),
        ([1], {}),
        ([1, NewEvent(seq_nr=2)], {"expected": 0}),
        ([NewEvent(seq_nr=2), NewEvent(seq_nr=2)], {}),
        ([NewEvent(seq_nr=2), NewEvent(seq_nr=1)], {}),
        ([NewEvent(seq_nr=2)], {"expected": 2}),
        ([NewEvent(seq_nr=0)], {}),
        ([NewEvent(seq_nr=MAX_SEQ_NR + 1)], {}),
        ([1], {"expected": -1}),
        ([1], {"expected": MAX_SEQ_NR}),
        ([NewEvent(Payload("json", b"{"))], {"expected": 0}),
        ([NewEvent(Payload("text", b"\xff"))], {"expected": 0}),
        ([NewEvent(tags=("\ud800",))], {"expected": 0}),
        ([1], {"expected": 0, "expire_after_ms": -1}),
        ([1], {"expected": 0, "append_id": ""}),
        ([1], {"expected": 0, "since": "x"}),
        ([object()], {"expected": 0}),
    ],
)
def test_an_append_that_makes_no_sense_is_refused(journal, events, more):
    with pytest.raises(Invalid):
        journal.append("a", events, **more)
    assert journal.pointer("a") == Pointer()


def test_an_append_that_is_too_large_is_refused(journal):
    with pytest.raises(TooLarge):
        journal.append("a", ["x" * 1_000_000], expected=0)


@pytest.mark.parametrize("entity", ["a", "ä/ö?&", " ", "x" * 255, "é" * 255, "\x00", "🙂"])
def test_ids_are_any_text_of_up_to_255_characters(journal, settled, entity):
    journal.append(entity, [1], expected=0)
    settled()
    assert numbers(journal, entity) == [1]


@pytest.mark.parametrize("entity", ["", "x" * 256, "\ud800"])
def test_other_ids_are_refused(journal, entity):
    for call in (journal.read, journal.pointer, journal.purge):
        with pytest.raises(Invalid):
            call(entity)


def test_journals_do_not_see_each_other(journal, settled):
    for number in range(1, 21):
        journal.append(f"e{number}", [NewEvent(seq_nr=number)])
    settled()
    assert [numbers(journal, f"e{number}") for number in range(1, 21)] == [[number] for number in range(1, 21)]


# -- reads


def test_a_part_of_a_journal_is_read(journal, settled):
    for number in range(1, 10, 2):
        journal.append("a", [NewEvent(seq_nr=number), NewEvent(seq_nr=number + 1)])
        if number == 5:
            settled()
    assert numbers(journal, "a", 3) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert numbers(journal, "a", 0, 2) == [1, 2]
    assert numbers(journal, "a", 4, 7) == [4, 5, 6, 7]
    assert numbers(journal, "a", 6, limit=3) == [6, 7, 8]
    assert numbers(journal, "a", limit=0) == []
    assert numbers(journal, "a", 11) == []
    assert numbers(journal, "a", 4, 3) == []
    with pytest.raises(Invalid):
        journal.read("a", limit=-1)


def test_an_absent_journal_is_empty(journal):
    assert numbers(journal) == []
    assert journal.pointer("a") == Pointer(None, None, None)


# -- deletes and purges


def test_a_delete_is_capped_at_the_pointer(journal, settled):
    journal.append("a", [1, 2, 3], expected=0)
    settled()
    journal.delete("a", 1)
    assert numbers(journal) == [2, 3]
    settled()
    journal.delete("a", 100)
    settled()
    assert numbers(journal) == []
    assert (journal.pointer("a").seq_nr, journal.pointer("a").delete_to) == (3, 3)
    conflict(journal, [1], expected=0)  # the pointer stays
    journal.append("a", [4], expected=3)
    assert numbers(journal) == [4]


def test_a_delete_of_an_absent_journal_does_nothing(node, journal, topic, settled):
    journal.delete("a", 5)
    settled()
    assert journal.pointer("a") == Pointer()
    assert journal.append("a", [1], expected=0).seq_nr == 1


def test_a_delete_can_name_the_life_that_its_writer_saw(journal, settled):
    journal.append("a", [1, 2], expected=0)
    old = journal.pointer("a").since
    journal.delete("a", 1, since=old)
    assert numbers(journal) == [2]
    journal.purge("a")
    settled()
    with pytest.raises(Conflict) as caught:
        journal.delete("a", 2, since=old)
    assert caught.value.info == {"seq_nr": None, "delete_to": None, "since": None}
    journal.append("a", [1, 2], expected=0)
    with pytest.raises(Conflict) as caught:
        journal.delete("a", 2, since=old)
    assert caught.value.info == {"seq_nr": 2, "delete_to": None, "since": journal.pointer("a").since}
    assert numbers(journal) == [1, 2]


def test_a_purged_journal_starts_again(journal, settled):
    journal.append("a", [1, 2, 3], expected=0)
    settled()
    journal.purge("a")
    settled()
    assert (numbers(journal), journal.pointer("a")) == ([], Pointer())
    again = journal.append("a", ["new"], expected=0)
    assert texts(journal.read("a")) == [(1, b'"new"')]
    assert journal.pointer("a") == Pointer(1, None, again.cursor)


def test_the_life_that_a_writer_saw_is_checked(journal, settled):
    journal.append("a", [1], expected=0)
    old = journal.pointer("a").since
    journal.append("a", [2], expected=1, since=old)
    journal.purge("a")
    settled()
    conflict(journal, [3], expected=0, since=old)
    journal.append("a", [1, 2], expected=0)
    now = journal.pointer("a").since
    assert conflict(journal, [3], expected=2, since=old).info["since"] == now
    journal.append("a", [3], expected=2, since=now)


# -- snapshots


def test_snapshots_are_saved_loaded_and_deleted(journal, settled):
    with pytest.raises(NotFound):
        journal.save_snapshot("a", 1, {})
    journal.append("a", [1, 2, 3, 4, 5], expected=0)
    settled()
    assert journal.snapshot("a") is None
    journal.save_snapshot("a", 2, {"sum": 3})
    journal.save_snapshot("a", 5, Payload("text", b"x"))
    journal.save_snapshot("a", 5, Payload("binary", b"\x00"))
    journal.delete("a", 5)
    assert journal.snapshot("a") == Snapshot(5, Payload("binary", b"\x00"))
    assert journal.snapshot("a", 4) == Snapshot(2, Payload("json", b'{"sum":3}'))
    assert journal.snapshot("a", 1) is None
    assert journal.snapshot("a", 0) is None
    journal.delete_snapshot("a", 5)
    journal.delete_snapshot("a", 5)
    assert journal.snapshot("a").seq_nr == 2


def test_a_purge_hides_snapshots_at_once_and_its_replication_removes_no_younger_ones(node, journal, topic):
    journal.append("a", [1], expected=0)
    journal.save_snapshot("a", 1, "old")
    journal.purge("a")
    assert journal.snapshot("a") is None
    journal.append("a", [1, 2], expected=0)
    assert journal.snapshot("a") is None
    journal.save_snapshot("a", 2, "new")
    replicate(node, topic)
    assert journal.snapshot("a") == Snapshot(2, Payload("json", b'"new"'))


@pytest.mark.parametrize(("again", "error"), [(False, NotFound), (True, Conflict)])
def test_a_snapshot_that_is_stored_after_the_purge_is_deleted(
    node, journals, journal, topic, again, error, monkeypatch
):
    """The purge is replicated before, so that nothing else would delete it."""
    since = cursors.parse(journal.append("a", [1], expected=0).cursor)
    store = journals.store()
    save = store.save_snapshot

    def save_late(*snapshot):
        journal.purge("a")
        if again:
            journal.append("a", [1], expected=0)
        replicate(node, topic)
        save(*snapshot)

    with monkeypatch.context() as patched:
        patched.setattr(store, "save_snapshot", save_late)
        with pytest.raises(error):
            journal.save_snapshot("a", 1, "late")
    assert store.snapshot(journals.topic(topic).id, "a", since, 9) is None
    assert journal.snapshot("a") is None


def test_a_purge_leaves_no_snapshot_behind_however_short_the_life_was(node, journals, journal, topic):
    """Also of a life that began and ended before it was replicated."""
    lives = []
    for _ in range(2):
        lives.append(cursors.parse(journal.append("a", [1], expected=0).cursor))
        journal.save_snapshot("a", 1, "old")
        journal.purge("a")
    replicate(node, topic)
    topic_id = journals.topic(topic).id
    assert [journals.store().snapshot(topic_id, "a", since, 9) for since in lives] == [None, None]


# -- dead letters


def test_records_that_cannot_be_decoded_are_set_aside(node, journals, journal, topic):
    from strandline.log.records import NewRecords  # noqa: PLC0415

    headers = [[("journal.action", b"{")], [("journal.action", b'{"new":{}}')], None]
    journal.append("a", [1], expected=0)
    partition = journals.action_log.partition(journals.topic(topic), "a")
    append(node.log.raw, topic, partition, NewRecords(5, [b"1", b"2", b"3"], [b"a"] * 3, headers))
    journal.append("a", [2], expected=1)
    assert numbers(journal) == [1, 2]
    replicate(node, topic)
    assert numbers(journal) == [1, 2]
    [letter] = journals.dead_letters(topic)
    assert (letter.partition, letter.key, letter.value) == (partition, b"a", b"1")
    assert journals.dead_letters(topic, after=f"{partition}:{letter.cursor}") == []
    for after in ("x", "0:x", "x:001-0001-000000000000000001"):
        with pytest.raises((Invalid, InvalidCursor)):
            journals.dead_letters(topic, after=after)


def test_a_snapshot_that_was_saved_but_not_checked_has_an_unknown_outcome(journals, journal, monkeypatch):
    """`Unavailable` would say that it was not saved."""
    journal.append("a", [1], expected=0)
    heads = iter([journals.reader.head])

    def head(place):
        try:
            return next(heads)(place)
        except StopIteration:
            raise Unavailable("away") from None

    with monkeypatch.context() as patched:
        patched.setattr(journals.reader, "head", head)
        with pytest.raises(OutcomeUnknown):
            journal.save_snapshot("a", 1, "state")
    assert journal.snapshot("a").seq_nr == 1
