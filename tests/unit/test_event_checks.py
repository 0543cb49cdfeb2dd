"""Typed decoders accept only events that follow every rule, and find the same metadata."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from json_texts import scalars, texts, values
from strandline.errors import Invalid, Malformed
from strandline.log import event_json
from strandline.log.event_checks import EventChecks
from strandline.log.event_json import UNDECODED
from strandline.log.model import EventType, Schema

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
AT = "2024-05-01T12:00:00Z"
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "minLength": 2}, "amount": {"type": "number", "minimum": 0}},
    "required": ["id"],
}
#: Schemas that have a type, and one that has none.
SCHEMAS = [{}, SCHEMA, {**SCHEMA, "additionalProperties": False}, {**SCHEMA, "minProperties": 1}]


def checks(category: str, schema: dict[str, Any] = SCHEMA) -> EventChecks:
    return EventChecks(EventType("orders", category=category, schema=Schema.json(schema)))


def accepted(made: EventChecks, items: list[bytes]) -> list[Any] | None:
    """What the typed decoders find; None if they leave the events to the rules."""
    try:
        return made._accept(items)
    except (*UNDECODED, Invalid):
        return None


def comparable(found: list[Any], items: list[bytes]) -> list[Any]:
    """The metadata with its place in its event."""
    return [
        ({**msgspec.structs.asdict(fields), "span_ctx": None}, bytes(text), place(text, item))
        for (fields, text), item in zip(found, items, strict=True)
    ]


def place(text: msgspec.Raw, item: bytes) -> int:
    return pa.py_buffer(text).address - pa.py_buffer(item).address


METADATA = {"eid": EID, "occurred_at": AT}
FULL = {
    **METADATA,
    "event_type": "orders",
    "flow_id": "f",
    "partition": "0",
    "partition_compaction_key": "k",
    "parent_eids": [EID],
    "span_ctx": {"a": 1},
}


@pytest.mark.parametrize("schema", SCHEMAS[:3])
@pytest.mark.parametrize("metadata", [METADATA, FULL])
@pytest.mark.parametrize("text", ["plain", "üñí 🎉"])
def test_usual_events_are_accepted_by_their_types(schema, metadata, text):
    """Usual events are not decoded to Python objects, which is several times slower."""
    order = {"id": text, "amount": 1.5}
    events = {
        "undefined": order,
        "business": {"metadata": metadata, **order},
        "data": {"metadata": metadata, "data_type": "order", "data_op": "C", "data": order},
    }
    for category, event in events.items():
        made, items = checks(category, schema), [msgspec.json.encode(event)]
        found = accepted(made, items)
        assert found is not None
        assert [msgspec.json.decode(raw) for _, raw in found] == ([metadata] if category != "undefined" else [])
        assert made._unchecked is None


_SENT = st.fixed_dictionaries(
    {
        "eid": st.sampled_from(
            [EID, EID, EID.upper(), EID.replace("-", ""), f"{EID}\n{EID}", EID + "\n", "x", None]
        ),
        "occurred_at": st.sampled_from(
            [AT, AT, "2024-02-29T00:00:00+02:00", "2016-12-31T23:59:60Z", "2023-02-29T00:00:00Z", "now", 5]
        ),
    },
    optional={
        "event_type": st.sampled_from(["orders", "", "other", None]),
        "flow_id": st.text(max_size=3) | st.none(),
        "partition": st.sampled_from(["0", "", None]),
        "partition_compaction_key": st.sampled_from(["k", 5]),
        "parent_eids": st.sampled_from([[], [EID], ["x"], [5], None, EID]),
        "span_ctx": st.dictionaries(st.text(max_size=2), scalars, max_size=2) | scalars,
    },
)
_ODD = st.sampled_from(["received_at", "version", "published_by", "surprise"])
_METADATA = st.just(METADATA) | _SENT | st.builds(lambda sent, name: {**sent, name: "x"}, _SENT, _ODD) | values
_ORDERS = st.fixed_dictionaries(
    {}, optional={"id": st.sampled_from(["12", "ü€", "1", None]), "amount": scalars, "more": values}
)
_EVENTS = {
    "undefined": _ORDERS | values,
    "business": st.builds(lambda order, metadata: {**order, "metadata": metadata}, _ORDERS, _METADATA) | _ORDERS,
    "data": st.fixed_dictionaries(
        {"data": _ORDERS | values, "metadata": _METADATA},
        optional={
            "data_type": st.just("t") | scalars,
            "data_op": st.sampled_from(["C", "U", "D", "S", "X", ["C"], None]),
            "more": values,
        },
    ),
}


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("category", _EVENTS)
@given(data=st.data())
def test_what_the_types_accept_follows_every_rule(category, schema, data):
    """This holds for spaces, escapes, repeated keys, large numbers and invalid texts."""
    made = checks(category, schema)
    items = data.draw(st.lists(_EVENTS[category].flatmap(texts), min_size=1, max_size=3))
    found = accepted(made, items)
    if found is not None:
        each, failures = made._check_each(items)
        assert failures == {}
        assert category == "undefined" or comparable(found, items) == comparable(each, items)


@pytest.mark.parametrize(
    "item",
    [
        b'{"id":"12","amount":1E400}',
        b'{"id":5,"id":"12"}',
        b'{"id":"12","more":' + b"1" * 4300 + b"}",
        b'{"id":"12","amount":1' + b"0" * 400 + b"}",
    ],
)
def test_valid_events_that_the_types_refuse_are_accepted_by_the_rules(item):
    """Numbers beyond a double, repeated keys and long numbers are valid."""
    made = checks("undefined")
    assert made.check([item, b'{"id":"12"}']) == ([], {})


@pytest.mark.parametrize("schema", SCHEMAS[:2])
@pytest.mark.parametrize("before", [0, 1, 2000, 10_000])
def test_an_integer_that_no_reader_can_decode_is_refused(schema, before):
    """The number of digits is limited, wherever in the event the integer is."""
    item = b'{"id":"12","text":"%b","more":%b}' % (b"x" * before, b"1" * 4301)
    _, failures = checks("undefined", schema).check([b'{"id":"12"}', item])
    assert failures == {1: "the event is not JSON: Integer value out of range - at `$[...]`"}


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("category", _EVENTS)
@pytest.mark.parametrize(
    "broken", [b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b'{"\xff":1}', b"01", b'"\x01"', b"nan"]
)
def test_fields_that_are_skipped_must_be_json(category, schema, broken):
    """A broken value is found in a field that no rule reads."""
    order = b'"id":"12"'
    metadata = b'"metadata":{"eid":"%b","occurred_at":"%b","span_ctx":{"a":%%b}}' % (EID.encode(), AT.encode())
    item = {
        "undefined": b'{%b,"amount":%%b}' % order,
        "business": b"{%b,%b}" % (metadata, order),
        "data": b'{%b,"data_type":"t","data_op":"C","data":{%b}}' % (metadata, order),
    }[category]
    made = checks(category, schema)
    _, failures = made.check([item % b"1", item % broken])
    assert [*failures] == [1]
    assert failures[1].startswith("the event is not JSON: ")


@pytest.mark.parametrize("change", [{"eid": f"{EID}\n{EID}"}, {"occurred_at": f"{AT}\n{AT}"}, {"eid": ""}])
def test_the_metadata_of_many_events_is_checked_one_by_one(change):
    """Metadata is matched for all events at once, but each event must follow the rules."""
    events = [{"metadata": METADATA | own, "id": "12"} for own in ({}, change, {})]
    _, failures = checks("business").check([msgspec.json.encode(event) for event in events])
    assert [*failures] == [1]


def test_every_failure_is_reported():
    """All refused events are reported, not only the first one."""
    events = [{"id": "12"}, {"id": 5}, {"metadata": METADATA, "id": "12"}, {"metadata": METADATA}]
    found, failures = checks("business").check([msgspec.json.encode(event) for event in events])
    assert sorted(failures) == [0, 1, 3]
    assert "metadata is missing" in failures[0]
    assert failures[3].startswith("#: ")
    assert len(found) == 1


_TEXTS = st.one_of(
    values.flatmap(texts),
    st.sampled_from(
        [b'{"id":"12"}', b'{"id":"\xc3\xbc2","amount":1}', b'{"id":5}', b'{"id":"12","x":"\xff"}', b"[]"]
    ),
)


@pytest.mark.parametrize("schema", SCHEMAS)
@given(st.lists(_TEXTS, max_size=4))
def test_events_of_an_array_are_checked_as_single_ones(schema, items):
    """One decoder reads the whole array, and accepts and refuses the same events."""
    made = checks("undefined", schema)
    try:
        split = event_json.to_items(b"[" + b", ".join(items) + b"]", 100)
    except Malformed:
        return
    assert made.check(split) == made.check([*split])


@pytest.mark.parametrize("digits", [4300, 4301, 9000])
def test_long_numbers_in_an_array_are_found(digits):
    """Decoders skip the fields that a schema does not name, but a number may be too long there as well."""
    made, item = checks("undefined"), b'{"id":"12","other":1%b}' % (b"0" * (digits - 1))
    split = event_json.to_items(b'[{"id":"12"},%b]' % item, 100)
    assert isinstance(split, event_json.ArrayItems)
    assert made.check(split) == made.check([*split])
