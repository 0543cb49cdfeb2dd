"""The type of a schema accepts nothing that the schema refuses, and most of what it accepts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from json_texts import texts, values
from strandline.log import schemas
from strandline.log.schema_types import object_type

DRAFTS = ["draft-04", "draft-06", "draft-07"]


def typed(schema: dict[str, Any], text: bytes, **envelope: Any) -> bool:
    """Whether the type of the schema accepts a text. The schema must have one."""
    kind = object_type(schema, envelope)
    assert kind is not None
    try:
        msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "order",
    "type": "object",
    "properties": {
        "id": {"type": "string", "minLength": 2, "maxLength": 3, "description": "its number"},
        "amount": {"type": "number", "minimum": 0, "maximum": 0.5},
        "count": {"type": "integer", "minimum": -1},
        "currency": {"enum": ["EUR", "USD"]},
        "paid": {"type": "boolean"},
        "nothing": {"type": "null"},
        "note": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "lines": {"type": "array", "items": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        "shop": {"type": "object", "properties": {"a-b": {}}, "additionalProperties": False},
        "any": {"default": 5},
    },
    "required": ["id", "other"],
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": "äöü"},
        {"amount": 0},
        {"amount": 0.5},
        {"count": -1},
        {"count": 10**30},
        {"currency": "USD"},
        {"paid": False, "nothing": None, "note": None, "any": [1, {}]},
        {"note": "", "tags": ["a"], "lines": [{"n": 1, "m": 2}], "shop": {"a-b": 1}, "more": 1},
    ],
)
def test_plain_values_are_accepted(more):
    """Bounds are inclusive, and fields that the schema does not mention may have any value."""
    assert typed(ORDER, msgspec.json.encode({"id": "ab", "other": None, **more}))


@pytest.mark.parametrize(
    "event",
    [
        {"id": "ab"},
        {"other": 1},
        {"id": "a", "other": 1},
        {"id": "äöü€", "other": 1},
        {"id": None, "other": 1},
        *(
            {"id": "ab", "other": 1, **more}
            for more in (
                {"amount": -0.1},
                {"amount": 0.51},
                {"amount": "0"},
                {"amount": True},
                {"amount": None},
                {"count": -2},
                {"count": 1.5},
                {"count": -(10**30)},
                {"currency": "EURO"},
                {"currency": None},
                {"paid": 0},
                {"nothing": 0},
                {"note": 1},
                {"tags": []},
                {"tags": ["a", "b", "c"]},
                {"tags": [1]},
                {"lines": [{}]},
                {"lines": [{"n": "1"}]},
                {"shop": {"b": 1}},
                {"shop": []},
            )
        ),
    ],
)
def test_violations_are_refused(event):
    """The type and the validator refuse each of these events."""
    assert not typed(ORDER, msgspec.json.encode(event))
    assert schemas.compile_check(json.dumps(ORDER), "forward")(event) is not None


@pytest.mark.parametrize("text", [b"[]", b"null", b'"a"', b"5", b'{"id":"ab","other":1'])
def test_only_objects_are_accepted(text):
    """The type of any schema refuses other JSON values."""
    assert not typed({}, text)
    assert not typed(ORDER, text)


def test_the_envelope_is_beside_the_schema():
    """The fields of the envelope are required, and a closed schema does not have to list them."""
    closed = {"properties": {"a": {}}, "additionalProperties": False}
    assert typed(closed, b'{"a":1,"metadata":{}}', metadata=msgspec.Raw)
    assert not typed(closed, b'{"a":1}', metadata=msgspec.Raw)
    assert not typed(closed, b'{"a":1,"metadata":{},"b":1}', metadata=msgspec.Raw)
    assert object_type({"properties": {"metadata": {}}}, {"metadata": msgspec.Raw}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"minProperties": 1},
        {"patternProperties": {}},
        {"additionalProperties": {"type": "string"}},
        {"additionalProperties": False, "required": ["a"]},
        {"allOf": [{}]},
        {"$ref": "#/definitions/a", "definitions": {"a": {}}},
        *(
            {"properties": {"a": part}}
            for part in (
                False,
                {"pattern": "a"},
                {"type": "string", "pattern": "a"},
                {"type": "string", "format": "date-time"},
                {"type": "number", "multipleOf": 2},
                {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                {"type": "number", "maximum": 2**60},
                {"type": "integer", "minimum": 0.5},
                {"type": "array", "items": [{"type": "string"}]},
                {"type": "array", "uniqueItems": True},
                {"enum": [1]},
                {"enum": ["a"], "type": ["string", "null"]},
                {"enum": ["a"], "minLength": 2},
                {"not": {}},
                {"$ref": "#"},
            )
        ),
        {"properties": {'a"b': {"type": "string"}}},
    ],
)
def test_other_schemas_have_no_type(schema):
    """The validator must check every event of such a schema."""
    assert object_type(schema, {}) is None


_PARTS = st.deferred(
    lambda: st.one_of(
        st.just({}),
        st.fixed_dictionaries(
            {"type": st.just("string")}, optional={"minLength": st.integers(0, 4), "maxLength": st.integers(0, 8)}
        ),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["number", "integer", ["number", "null"], ["integer", "string"]])},
            optional={"minimum": st.integers(-2, 2), "maximum": st.integers(-1, 300)},
        ),
        st.fixed_dictionaries({"type": st.sampled_from(["boolean", "null", ["boolean", "null", "string"]])}),
        st.fixed_dictionaries({"enum": st.lists(st.text(max_size=2), min_size=1, max_size=3, unique=True)}),
        st.fixed_dictionaries(
            {"type": st.just("array")}, optional={"items": _PARTS, "minItems": st.integers(0, 2)}
        ),
        _OBJECTS,
    )
)
_NAMES = st.sampled_from(["a", "b", "c", "é", ""])
_OBJECTS = st.fixed_dictionaries(
    {"properties": st.dictionaries(_NAMES, _PARTS, max_size=3)},
    optional={
        "type": st.sampled_from(["object", ["object", "null"]]),
        "required": st.lists(_NAMES, min_size=1, max_size=2, unique=True),
        "additionalProperties": st.booleans(),
        "description": st.text(max_size=3),
    },
)


@given(_OBJECTS, st.sampled_from(DRAFTS), st.dictionaries(_NAMES, values, max_size=4).flatmap(texts))
def test_a_type_accepts_only_what_its_schema_accepts(schema, draft, text):
    """This holds for all supported keywords and all ways to write an event."""
    schema = {**schema, "$schema": f"http://json-schema.org/{draft}/schema#"}
    if object_type(schema, {}) is None or not typed(schema, text):
        return
    try:
        event = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return  # invalid UTF-8, or a number of the kind that only the full decoder refuses
    assert schemas.compile_check(json.dumps(schema), "forward")(event) is None
