"""The JSON of journals over HTTP."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.journal import wire
from strandline.journal.model import DeadLetter, JournalEvent, NewEvent, Payload, Snapshot
from strandline.log.cursors import Position

PAYLOADS = st.one_of(
    st.none(),
    st.binary().map(lambda data: Payload("binary", data)),
    st.text().map(lambda text: Payload("text", text.encode(errors="ignore"))),
    st.sampled_from([b"1", b'"\xc3\xa4"', b"1e999", b"null", b"[1, 2]", b'{"a":{}}']).map(
        lambda data: Payload("json", data)
    ),
)
TAGS = st.lists(st.sampled_from(["", "a", "ä\u2028"]), max_size=3).map(tuple)


@given(
    payload=PAYLOADS, tags=TAGS, seq_nr=st.integers(1, 2**63 - 1), metadata=st.sampled_from([None, b"{}", b"1"])
)
def test_events_survive_the_way(payload, tags, seq_nr, metadata):
    """From the server to the client, and new ones from the client to the server."""
    event = JournalEvent(seq_nr, payload, tags, 1_700_000_000_123, metadata)
    line = wire.to_line(event)
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line, type=wire.EventLine).to_event() == event
    new = NewEvent(payload, tags, seq_nr)
    sent = msgspec.json.encode(wire.EventItem.of(new))
    assert msgspec.json.decode(sent, type=wire.EventItem).to_event() == new
    snapshot = Snapshot(seq_nr, payload)
    shown = msgspec.json.encode(wire.SnapshotView.of(snapshot))
    assert msgspec.json.decode(shown, type=wire.SnapshotView).to_snapshot() == snapshot


def test_two_payloads_are_refused():
    with pytest.raises(Invalid, match="two payloads"):
        wire.to_payload(wire.EventItem(payload=msgspec.Raw(b"1"), payload_text=""))


@given(
    key=st.none() | st.binary(),
    value=st.none() | st.binary(),
    headers=st.lists(st.tuples(st.text("ab"), st.binary()), max_size=2).map(tuple),
)
def test_dead_letters_survive_the_way(key, value, headers):
    letter = DeadLetter(3, Position(2, 17), 1_700_000_000_123, "malformed", key, value, headers)
    shown = msgspec.json.encode(wire.DeadLetterView.of(letter))
    assert msgspec.json.decode(shown, type=wire.DeadLetterView).to_letter() == letter
    assert wire.parse_place(wire.place_of(letter)) == (3, Position(2, 17))


@pytest.mark.parametrize("time_ms", [253_402_300_799_999, 253_402_300_800_000, 1_700_000_000_000_000, 2**63 - 1])
def test_a_time_that_rfc_3339_cannot_express_is_the_last_one_that_it_can(time_ms):
    """A producer of Kafka may write microseconds, or any number. The event must stay readable."""
    line = wire.to_line(JournalEvent(1, None, (), time_ms))
    assert b'"timestamp":"9999-12-31T23:59:59.999Z"' in line
    letter = DeadLetter(0, Position(1, 1), time_ms, "malformed", None, None)
    assert wire.DeadLetterView.of(letter).timestamp == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "x:001-0001--1",
        "1:",
        "1:BEGIN",
        "1:x",
        "-1:001-0001--1",
        f"{10**20}:001-0001--1",
        "\u0663:001-0001--1",
    ],
)
def test_other_texts_are_no_places(text):
    with pytest.raises(Invalid, match="not the place of a dead letter"):
        wire.parse_place(text)
