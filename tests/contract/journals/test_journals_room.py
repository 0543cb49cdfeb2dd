"""The contract of the journal room, in process and over HTTP."""

from __future__ import annotations

import msgspec
import pytest

from strandline import EventType
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError
from strandline.journal import JournalTopic, NewEvent, Payload, Pointer, Snapshot
from strandline.journal.model import MAX_SEQ_NR
from strandline.platform import Platform

#: Any text is an id.
IDS = ["a", "a/b", "a b", "..", ".", "%2F", "ä€😀", "/", "a/", "events", "?x=1#y", "x" * 255, "\n", "+"]


def numbers(journal, entity: str = "one", *arguments, **options) -> list[int]:
    return [event.seq_nr for event in journal.read(entity, *arguments, **options)]


# -- topics


def test_a_topic_is_created_once(rooms, name):
    """The same request again changes nothing; other values are a conflict."""
    made = rooms.journals.create(name, partitions=3)
    assert made == JournalTopic(name, 3, "default")
    assert rooms.journals.create(name, partitions=3) == rooms.journals.create(name) == made
    assert made in rooms.journals.topics()
    with pytest.raises(Conflict, match="3 partitions"):
        rooms.journals.create(name, partitions=4)


def test_an_ordinary_event_type_is_no_topic(rooms, name):
    """Nor can a topic be published to, grown or changed as an event type."""
    rooms.log.create(EventType(name))
    with pytest.raises(Conflict, match="ordinary event type"):
        rooms.journals.create(name)
    with pytest.raises(NotFound, match="holds no journals"):
        rooms.journal(name).pointer("one")
    with pytest.raises(NotFound, match=f"no topic '{name}-none' of journals; create it"):
        rooms.journal(f"{name}-none").append("one", [{}], expected=0)
    assert name not in {topic.name for topic in rooms.journals.topics()}
    topic = f"{name}-topic"
    rooms.journals.create(topic)
    rooms.journal(topic).append("one", [1], expected=0)
    for call in (
        lambda: rooms.log.publish(topic, [{"n": 1}]),
        lambda: rooms.log.admin.grow(topic, 2),
        lambda: rooms.log.update(rooms.log.get(topic)),
        lambda: [*rooms.log.read(topic)],
    ):
        with pytest.raises(Conflict, match="actions of journals"):
            call()


def test_a_topic_needs_a_name_and_a_storage_that_exist(rooms, name):
    for wrong in ({"topic": "no name"}, {"topic": name, "storage": "missing"}, {"topic": name, "partitions": 0}):
        with pytest.raises(Invalid):
            rooms.journals.create(**wrong)


def test_a_missing_topic_is_not_found(rooms, name):
    journal = rooms.journal(name)
    for call in (
        lambda: journal.append("one", [1], expected=0),
        lambda: [*journal.read("one")],
        lambda: journal.pointer("one"),
        lambda: journal.delete("one", 1),
        lambda: journal.purge("one"),
        lambda: journal.save_snapshot("one", 1, 1),
        lambda: journal.snapshot("one"),
        lambda: journal.delete_snapshot("one", 1),
        lambda: rooms.journals.dead_letters(name),
    ):
        with pytest.raises(NotFound, match=name):
            call()


# -- events


def test_events_are_read_as_they_were_appended(journal):
    """With their payloads of all kinds, tags and metadata. JSON keeps its bytes."""
    payloads = [
        Payload("json", b'{"n": 1e400, "big":12345678901234567890123}'),
        Payload("json", b"null"),
        Payload("text", "grüße\n ".encode()),
        Payload("binary", bytes(range(256))),
        Payload("binary", b""),
        None,
    ]
    new = [NewEvent(payload, (f"tag-{at}", "ä"), at) for at, payload in enumerate(payloads, 1)]
    stored = journal.append("one", new, metadata={"by": ["me", None]})
    assert stored.seq_nr == 6
    found = [*journal.read("one")]
    assert [event.payload for event in found] == payloads
    assert [event.tags for event in found] == [event.tags for event in new]
    assert {event.metadata for event in found} == {b'{"by":["me",null]}'}
    assert len({event.timestamp_ms for event in found}) == 1
    assert found[0].timestamp_ms > 1_700_000_000_000


HUGE = [b"9" * 4301, b"-" + b"9" * 5000, b"1e99999999999999999999", b"-1E-99999999999999999999", b"1e400"]


@pytest.mark.parametrize("number", HUGE, ids=["4301", "5000", "e", "-e", "400"])
def test_json_numbers_of_any_size_are_stored(journal, number):
    """In events, their metadata and snapshots, also if Python has no such number."""
    payload = Payload("json", b'{"n": [%b]}' % number)
    journal.append("one", [NewEvent(payload)], expected=0, metadata=msgspec.Raw(payload.data))
    (event,) = journal.read("one")
    assert (event.payload, event.metadata) == (payload, payload.data)
    journal.save_snapshot("one", 1, payload)
    assert journal.snapshot("one").payload == payload


NO_JSON = [b"", b"01", b"1.", b"NaN", b"{'a':1}", b'"\xff"', b'{"\xff":1}', b'"\\ud800"', b"[1,]", b"1 2", b"tru"]


@pytest.mark.parametrize("text", NO_JSON)
def test_a_json_payload_that_is_no_json_is_refused(journal, text):
    for act in (
        lambda: journal.append("one", [NewEvent(Payload("json", text))], expected=0),
        lambda: journal.save_snapshot("one", 1, Payload("json", text)),
    ):
        with pytest.raises(Invalid, match="the payload is not JSON"):
            act()


def test_a_json_text_in_several_lines_is_one_value(journal):
    """Line breaks between the tokens are only space."""
    journal.append("one", [NewEvent(Payload("json", b'{\r\n "a":\n [1,\n2]\n}'))], expected=0)
    (event,) = journal.read("one")
    assert event.payload.data.split() == [b"{", b'"a":', b"[1,", b"2]", b"}"]


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_json_may_be_nested_500_levels_deep(journal):
    """Whatever the stack of the process is that reads it."""
    deep = Payload("json", nested(500))
    new = [NewEvent(deep), NewEvent(Payload("binary", b"\x00"))]
    journal.append("one", new, expected=0, metadata=msgspec.Raw(deep.data))
    journal.append("one", [deep], expected=2)
    journal.save_snapshot("one", 3, deep)
    found = [*journal.read("one")]
    assert [event.payload for event in found] == [deep, Payload("binary", b"\x00"), deep]
    assert found[0].metadata == deep.data
    assert journal.snapshot("one").payload == deep


def test_json_that_is_nested_deeper_is_refused(journal):
    journal.append("one", [1], expected=0)
    deep = Payload("json", nested(501))
    for call in (
        lambda: journal.append("one", [NewEvent(deep)], expected=1),
        lambda: journal.append("one", [msgspec.Raw(deep.data)], expected=1),
        lambda: journal.append("one", [1], expected=1, metadata=msgspec.Raw(deep.data)),
        lambda: journal.save_snapshot("one", 1, deep),
    ):
        with pytest.raises(Invalid, match="500 arrays and objects"):
            call()
    assert numbers(journal, "one") == [1]


def test_a_raw_value_must_be_json(journal):
    for wrong in (msgspec.Raw(b"{bad"), {"inside": msgspec.Raw(b"1}")}, msgspec.Raw(b'"\xff"')):
        for events, metadata in (([wrong], None), ([1], wrong)):
            with pytest.raises(Invalid):
                journal.append("one", events, expected=0, metadata=metadata)
    assert journal.pointer("one") == Pointer()


def test_any_value_is_a_json_payload(journal):
    values = [{"placed": True}, "text", 1, None, [1.5]]
    journal.append("one", values, expected=0)
    texts = [b'{"placed":true}', b'"text"', b"1", b"null", b"[1.5]"]
    assert [event.payload for event in journal.read("one")] == [Payload("json", text) for text in texts]
    assert [event.metadata for event in journal.read("one")] == [None] * 5


@pytest.mark.parametrize("entity", IDS)
def test_any_text_is_an_id(journal, entity):
    journal.append(entity, [{"id": entity}], expected=0)
    assert numbers(journal, entity) == [1]
    assert journal.pointer(entity).seq_nr == 1
    journal.save_snapshot(entity, 1, entity)
    assert journal.snapshot(entity).payload.data.decode() == f'"{entity}"'.replace("\n", "\\n")
    journal.delete(entity, 1)
    journal.purge(entity)
    assert journal.pointer(entity) == Pointer()


@pytest.mark.parametrize("entity", ["", "x" * 256, "\ud800"])
def test_an_id_has_1_to_255_characters(journal, entity):
    for call in (journal.pointer, journal.read, journal.purge, lambda one: journal.append(one, [1], expected=0)):
        with pytest.raises(Invalid, match="the id of a journal"):
            call(entity)


def test_events_are_numbered_from_the_expected_pointer(journal):
    assert journal.append("one", ["a", "b"], expected=0).seq_nr == 2
    assert journal.append("one", ["c"], expected=2).seq_nr == 3
    assert numbers(journal) == [1, 2, 3]


def test_numbers_may_have_gaps(journal):
    last = MAX_SEQ_NR
    journal.append("one", [NewEvent(seq_nr=5), NewEvent(seq_nr=9)])
    journal.append("one", [NewEvent(seq_nr=last)])
    assert numbers(journal) == [5, 9, last]
    assert journal.pointer("one").seq_nr == last


def test_an_append_to_another_pointer_is_a_conflict(journal):
    """The error has the pointer as it is. Nothing was appended."""
    journal.append("one", ["a", "b"], expected=0)
    for events, expected in ((["c"], 0), (["c"], 1), (["c"], 3), ([NewEvent(seq_nr=2)], None)):
        with pytest.raises(Conflict) as raised:
            journal.append("one", events, expected=expected)
        assert (raised.value.code, raised.value.info["seq_nr"]) == ("conflict", 2)
    with pytest.raises(Conflict) as raised:
        journal.append("absent", ["a"], expected=7)
    assert raised.value.info["seq_nr"] in {0, None}
    assert numbers(journal) == [1, 2]


def test_a_retried_append_has_the_answer_of_the_first(journal):
    """By its id; another id is a conflict."""
    first = journal.append("one", ["a", "b"], expected=0, append_id="try-1")
    journal.append("one", ["c"], expected=2)
    assert journal.append("one", ["a", "b"], expected=0, append_id="try-1") == first
    with pytest.raises(Conflict):
        journal.append("one", ["a", "b"], expected=0, append_id="try-2")
    assert numbers(journal) == [1, 2, 3]


@pytest.mark.parametrize(
    ("events", "options"),
    [
        ([], {"expected": 0}),
        (["a"], {}),
        ([NewEvent(seq_nr=2), NewEvent(seq_nr=2)], {}),
        ([NewEvent(seq_nr=2), NewEvent(seq_nr=1)], {}),
        ([NewEvent(seq_nr=3), NewEvent()], {"expected": 0}),
        ([NewEvent(seq_nr=3)], {"expected": 3}),
        ([NewEvent(seq_nr=3)], {"expected": 4}),
        (["a"], {"expected": -1}),
        (["a"], {"expected": 0, "expire_after_ms": -1}),
        (["a"], {"expected": 0, "since": "nothing"}),
        (["a"], {"expected": 0, "append_id": "x" * 256}),
        (["a"], {"expected": 0, "append_id": ""}),
        (["a"], {"expected": 0, "since": "BEGIN"}),
        (["a"], {"expected": 0, "metadata": object()}),
        (["a"], {"expected": "0"}),
        (["a"], {"expected": 0.5}),
        ([NewEvent(Payload("json", b"{"))], {"expected": 0}),
        ([NewEvent(Payload("text", b"\xff"))], {"expected": 0}),
    ],
)
def test_what_cannot_be_appended_is_refused(journal, events, options):
    with pytest.raises(Invalid):
        journal.append("one", events, **options)
    assert journal.pointer("one") == Pointer()


def test_a_read_is_limited_by_numbers_and_count(journal):
    journal.append("one", [*range(10)], expected=0)
    assert numbers(journal, "one", 3, 5) == [3, 4, 5]
    assert numbers(journal, "one", 0, 2) == [1, 2]
    assert numbers(journal, "one", 8) == [8, 9, 10]
    assert numbers(journal, "one", 5, 4) == numbers(journal, "one", limit=0) == numbers(journal, "one", 11) == []
    assert numbers(journal, "one", 2, limit=3) == [2, 3, 4]
    assert numbers(journal, "absent") == []


def test_numbers_out_of_range_are_refused(journal):
    journal.append("one", ["a", "b"], expected=0)
    for call in (
        lambda: journal.read("one", -1),
        lambda: journal.read("one", 1, -1),
        lambda: journal.read("one", 2**63),
        lambda: journal.read("one", 1, 2**63),
        lambda: journal.read("one", limit=-1),
        lambda: journal.delete("one", 0),
        lambda: journal.delete("one", 2**63),
        lambda: journal.snapshot("one", -1),
        lambda: journal.snapshot("one", 2**63),
    ):
        with pytest.raises(Invalid):
            call()
    assert numbers(journal, "one", 1, 2**63 - 1) == [1, 2]
    assert journal.snapshot("one", 0) is None


def test_a_long_journal_is_streamed(journal):
    """More than one part of an answer."""
    for start in range(0, 400, 40):
        journal.append("one", ["x" * 20_000] * 40, expected=start)
    assert numbers(journal) == [*range(1, 401)]
    events = journal.read("one")
    assert next(events).seq_nr == 1
    events.close()  # the rest is not read


# -- deleting


def test_deleted_events_are_gone_and_the_pointer_stays(journal):
    journal.append("one", ["a", "b", "c"], expected=0)
    since = journal.pointer("one").since
    journal.delete("one", 2)
    assert numbers(journal) == [3]
    assert journal.pointer("one") == Pointer(3, 2, since)
    journal.delete("one", 100)
    assert numbers(journal) == []
    assert journal.pointer("one") == Pointer(3, 3, since)
    with pytest.raises(Conflict):
        journal.append("one", ["d"], expected=0)
    journal.append("one", ["d"], expected=3)
    assert numbers(journal) == [4]
    journal.delete("absent", 5)
    assert journal.pointer("absent") == Pointer()


def test_a_delete_of_another_life_is_a_conflict(journal):
    journal.append("one", ["a", "b"], expected=0)
    since = journal.pointer("one").since
    journal.delete("one", 1, since=since)
    journal.purge("one")
    journal.append("one", ["c"], expected=0)
    with pytest.raises(Conflict) as caught:
        journal.delete("one", 1, since=since)
    assert caught.value.info["since"] == journal.pointer("one").since != since
    assert numbers(journal) == [1]
    with pytest.raises(Invalid):
        journal.delete("one", 1, since="BEGIN")


def test_a_purged_journal_starts_again(journal):
    """Its next life is another one, which a writer of the first does not touch."""
    journal.append("one", ["a", "b"], expected=0)
    before = journal.pointer("one").since
    journal.purge("one")
    assert journal.pointer("one") == Pointer()
    assert numbers(journal) == []
    journal.purge("one")
    journal.append("one", ["c", "d"], expected=0)
    after = journal.pointer("one").since
    assert after not in {None, before}
    with pytest.raises(Conflict):
        journal.append("one", ["e"], expected=2, since=before)
    assert journal.append("one", ["e"], expected=2, since=after).seq_nr == 3


# -- snapshots


def test_the_newest_snapshot_at_or_below_a_number(journal):
    journal.append("one", [*range(9)], expected=0)
    assert journal.snapshot("one") is None
    for seq_nr, payload in ((3, {"n": 3}), (6, Payload("text", b"six")), (9, Payload("binary", b"\x00"))):
        journal.save_snapshot("one", seq_nr, payload)
    assert journal.snapshot("one") == Snapshot(9, Payload("binary", b"\x00"))
    assert journal.snapshot("one", 8) == journal.snapshot("one", 6) == Snapshot(6, Payload("text", b"six"))
    assert journal.snapshot("one", 5) == Snapshot(3, Payload("json", b'{"n":3}'))
    assert journal.snapshot("one", 2) is None
    journal.save_snapshot("one", 3, [])
    assert journal.snapshot("one", 3) == Snapshot(3, Payload("json", b"[]"))
    journal.delete_snapshot("one", 3)
    journal.delete_snapshot("one", 3)
    assert journal.snapshot("one", 5) is None


def test_a_snapshot_belongs_to_one_life(journal):
    """A purge hides it, and a late one of an older life is refused."""
    journal.append("one", ["a"], expected=0)
    before = journal.pointer("one").since
    journal.save_snapshot("one", 1, "first life", since=before)
    journal.purge("one")
    assert journal.snapshot("one") is None
    with pytest.raises(NotFound, match="no journal"):
        journal.save_snapshot("one", 1, "no life")
    journal.append("one", ["b"], expected=0)
    assert journal.snapshot("one") is None
    with pytest.raises(Conflict):
        journal.save_snapshot("one", 1, "first life", since=before)
    assert journal.snapshot("one") is None


@pytest.mark.parametrize("seq_nr", [0, -1, MAX_SEQ_NR + 1])
def test_a_snapshot_needs_a_number(journal, seq_nr):
    journal.append("one", ["a"], expected=0)
    for call in (lambda: journal.save_snapshot("one", seq_nr, 1), lambda: journal.delete_snapshot("one", seq_nr)):
        with pytest.raises(StrandlineError):
            call()


NUMBERS = [True, 1.0, 1.5, "1", -1, 2**63]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_whole_numbers_in_their_range(journal, number):
    """`True` and 1.0 equal 1, but a record with them cannot be decoded, so that the append would be lost."""
    journal.append("a", [1], expected=0)
    for call in (
        lambda: journal.append("a", [2], expected=number),
        lambda: journal.append("a", [NewEvent(seq_nr=number)]),
        lambda: journal.append("a", [2], expected=1, expire_after_ms=number),
        lambda: journal.read("a", number),
        lambda: journal.read("a", 1, number),
        lambda: journal.read("a", limit=number),
        lambda: journal.delete("a", number),
        lambda: journal.save_snapshot("a", number, {}),
        lambda: journal.snapshot("a", number),
        lambda: journal.delete_snapshot("a", number),
    ):
        with pytest.raises(Invalid):
            call()
    assert [event.seq_nr for event in journal.read("a")] == [1]


@pytest.mark.parametrize(
    "events",
    [
        "abc",
        b"abc",
        {"placed": True},
        None,
        [NewEvent(tags="abc")],
        [NewEvent(tags=None)],
        [NewEvent(tags=(1,))],
        [NewEvent({"placed": True})],
        [NewEvent(Payload("xml", b"<a/>"))],
        [NewEvent(Payload("binary", "text"))],
    ],
)
def test_events_of_other_types_are_refused(journal, events):
    with pytest.raises(Invalid):
        journal.append("a", events, expected=0)
    assert journal.pointer("a").seq_nr is None


def test_texts_of_other_types_are_refused(journal):
    for call in (
        lambda: journal.append("a", [1], expected=0, append_id=5),
        lambda: journal.append("a", [1], expected=0, since=5),
        lambda: journal.delete("a", 1, since=5),
        lambda: journal.pointer(5),
        lambda: journal.pointer(b"a"),
        lambda: journal.pointer(None),
    ):
        with pytest.raises(Invalid):
            call()


def test_the_longest_expiry_is_that_of_kafka_journal(journal):
    """Scala reads no duration of more than 292 years."""
    longest = (2**63 - 1) // 1_000_000
    with pytest.raises(Invalid):
        journal.append("a", [1], expected=0, expire_after_ms=longest + 1)
    journal.append("a", [1], expected=0, expire_after_ms=longest)
    assert journal.pointer("a").seq_nr == 1


def test_json_in_several_lines_keeps_its_bytes(rooms, journal):
    """Only the lines of a read over HTTP have no line breaks."""
    text = Payload("json", b'{\n  "placed": 1.10\r\n}')
    journal.append("a", [NewEvent(text)], expected=0)
    journal.save_snapshot("a", 1, text)
    assert journal.snapshot("a") == Snapshot(1, text)
    [event] = journal.read("a")
    read = text.data if isinstance(rooms, Platform) else b'{   "placed": 1.10  }'
    assert event.payload == Payload("json", read)


def test_a_snapshot_of_none_is_json(journal):
    journal.append("a", [1], expected=0)
    journal.save_snapshot("a", 1, None)
    assert journal.snapshot("a") == Snapshot(1, Payload("json", b"null"))
