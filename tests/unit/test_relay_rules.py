"""What a relay decides: ids, due times, order, and the form of an event in the target."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.log import EventType
from strandline.log.cursors import Position
from strandline.log.reading import Batch
from strandline.log.records import HEADERS, READ
from strandline.schedule.relay.filling import decode
from strandline.schedule.relay.rules import (
    DueRule,
    for_target,
    in_order,
    letter,
    message_id,
    missing,
    origin,
    origins,
    place_of,
)
from strandline.schedule.relay.values import RelayMessage, RelayOptions

ID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
NOON = 1_714_564_800_000


@given(st.integers(0, 10_000), st.integers(1, 2**20), st.integers(0, 10**18 - 1))
def test_an_id_names_the_place_of_its_event(partition, order, offset):
    """Ids of one partition and timeline sort like their offsets."""
    position = Position(order, offset)
    assert place_of(message_id(ID, partition, position)) == (partition, position)
    assert len(message_id(ID, partition, position)) <= 255
    if offset:
        assert message_id(ID, partition, Position(order, offset - 1)) < message_id(ID, partition, position)


def test_a_fixed_delay_counts_from_the_publication():
    assert DueRule(90_000).due_ms(NOON, b'{"n": 1}') == NOON + 90_000


@pytest.mark.parametrize(
    ("value", "due_ms"),
    [
        (b'{"at": "2024-05-01T12:00:00Z"}', NOON),
        (b'{"at": "2024-05-01T14:00:00.250+02:00"}', NOON + 250),
        (b'{"at": "2024-05-01T12:00:00.250000Z"}', NOON + 250),
        (b'{"at": "2024-05-01T12:00:00.250001Z"}', NOON + 251),
        (b'{"at": "2024-05-01T12:00:00.999000001Z"}', NOON + 1000),
        (b'{"at": 1714564800000}', NOON),
        (b'{"at": 0}', 0),
    ],
)
def test_the_time_can_be_a_field(value, due_ms):
    assert DueRule(field="at").due_ms(1, value) == due_ms


def test_the_field_can_be_inside_of_objects():
    assert DueRule(field="order.ship.at").due_ms(1, b'{"order": {"ship": {"at": 7}}}') == 7


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"{", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"{}", "'at' is missing"),
        (b'{"at": null}', "must be a time in RFC 3339 or in milliseconds, not None"),
        (b'{"at": "noon"}', "'noon' is not a time"),
        (b'{"at": "2024-05-01T12:00:00"}', "the offset is required"),
        (b'{"at": true}', "not True"),
        (b'{"at": 1.5}', "not 1.5"),
        (b'{"at": -1}', "not -1"),
        (b'{"at": 99999999999999999999}', "not 99999999999999999999"),
    ],
)
def test_what_cannot_be_relayed_has_a_reason(value, reason):
    with pytest.raises(Invalid, match=reason.replace("[", r"\[")):
        DueRule(field="at").due_ms(1, value)


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b"7", b'"text"'])
def test_with_a_fixed_delay_an_event_must_be_an_object_too(value):
    with pytest.raises(Invalid):
        DueRule(5).due_ms(1, value)


@pytest.mark.parametrize("value", [b'{"order": 5}', b'{"order": []}'])
def test_a_path_through_something_else_is_missing(value):
    with pytest.raises(Invalid, match="is missing"):
        DueRule(field="order.at").due_ms(1, value)


def test_records_become_messages_or_dead_letters():
    rows = [
        {"offset": 3, "timestamp": 10, "key": None, "value": b"{}", "headers": None},
        {"offset": 5, "timestamp": 11, "key": None, "value": b"nonsense", "headers": None},
    ]
    batch = Batch("orders", "2", 1, pa.RecordBatch.from_pylist(rows, schema=READ))
    messages, dead = decode(batch, ID, DueRule(100))
    assert messages == [RelayMessage(f"{ID}/2/001-0001-000000000000000003", 110, b"{}")]
    (one,) = dead
    assert (one.partition, one.cursor, one.value) == (2, Position(1, 5), b"nonsense")
    assert "not a JSON object" in one.reason


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3)), unique=True))
def test_the_order_is_by_due_time_then_id(keys):
    ordered = in_order([RelayMessage(name, due, b"{}") for due, name in keys])
    assert [(one.due_ms, one.id) for one in ordered] == sorted(keys)


def test_events_without_a_category_are_published_as_they_are():
    value = b'{"price": 1.10, "metadata": {"event_type": "orders"}}'
    assert for_target(value, EventType("later")) is value


def test_metadata_that_the_platform_has_added_is_left_out():
    """Numbers keep their text, and other metadata stays."""
    own = {"eid": ID, "occurred_at": "2024-05-01T12:00:00Z", "flow_id": "f"}
    added = {"received_at": "x", "version": "1.0.0", "event_type": "orders", "partition": "3"}
    value = b'{"price": 1.10, "metadata": %s}' % json.dumps({**own, **added}).encode()
    business = EventType("later", category="business")
    assert json.loads(for_target(value, business))["metadata"] == own
    assert b"1.10" in for_target(value, business)
    chosen = EventType("later", category="business", partition_strategy="user_defined")
    assert json.loads(for_target(value, chosen))["metadata"] == {**own, "partition": "3"}


@pytest.mark.parametrize("value", [b'{"n": 1}', b"[]", b"{", b'{"metadata": 5}', b'{"metadata": {"eid": "x"}}'])
def test_what_has_nothing_to_leave_out_is_left_to_the_target(value):
    assert for_target(value, EventType("later", category="business")) == value


def test_the_origin_of_an_event_is_found_in_its_headers():
    one = RelayMessage(message_id(ID, 0, Position(1, 5)), 1, b"{}")
    rows = [None, [("other", b"x")], [("trace", b"1"), *origin("orders", one)], []]
    headers = pa.array(
        [None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], HEADERS
    )
    assert origins(headers) == {one.id}
    assert origins(pa.nulls(3, HEADERS)) == set()
    assert missing([one, RelayMessage("b", 1, b"{}")], {one.id}) == [RelayMessage("b", 1, b"{}")]


def test_a_dead_letter_names_the_place_in_the_source():
    one = letter(RelayMessage(message_id(ID, 4, Position(2, 9)), 1, b"{}"), "why")
    assert (one.partition, one.cursor, one.reason, one.value) == (4, Position(2, 9), "why", b"{}")


@pytest.mark.parametrize(
    "name",
    [
        "foreign",
        "a/b/c",
        f"{ID}/1",
        f"{ID}/9999999999/001-0001-{0:018d}",
        f"{ID}/1/BEGIN",
        f"{ID}/1/001-0001-{10**18}",
    ]
    + [f"{ID}/1/001-{order}-{0:018d}" for order in ("00001", "ffffffff", "10000000000000000")],
)
def test_a_message_of_another_producer_has_no_place(name):
    one = letter(RelayMessage(name, 1, b"{}"), "why")
    assert (one.id, one.partition, one.cursor) == (name, 0, Position(1, -1))
    assert one.reason == "another producer has created the message: why"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"source": ""}, "--relay-source"),
        ({"target": ""}, "--relay-target"),
        ({"schedule": ""}, "--relay-schedule"),
        ({"target": "orders"}, "never end"),
        ({"delay_ms": -1}, "not be negative"),
        ({"delay_ms": 5, "due_field": "at"}, "leave one of them out"),
        ({"unsure": "guess"}, "stop, publish, delete"),
    ],
)
def test_options_are_checked(changed, said):
    options = {"source": "orders", "target": "later", "schedule": "wait", **changed}
    with pytest.raises(Invalid, match=said):
        RelayOptions(**options).check()
