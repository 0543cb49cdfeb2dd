"""JSON schemas: what compiles, what is refused, and which changes are allowed."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from strandline.errors import Invalid
from strandline.log import schemas
from strandline.log.model import EventType, Schema

STRING, NUMBER = {"type": "string"}, {"type": "number"}


def event_type(schema: object, mode: str = "forward", version: str = "1.2.3", **more: object) -> EventType:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return EventType("e", schema=Schema(schema=text, version=version), compatibility_mode=mode, **more)


def problem(schema: object, event: object, mode: str = "forward") -> str | None:
    return schemas.compile_check(json.dumps(schema), mode)(event)


# -- checking events

SELF = {"$ref": "#"}
BRANCHING = [
    {"properties": {"n": {"anyOf": [SELF, SELF]}}, "not": {"required": ["end"]}},
    {"properties": {"n": {"oneOf": [SELF, SELF]}}},
    {"required": ["op"], "oneOf": [{"properties": {"op": {"enum": [op]}, "n": SELF}} for op in "+-*"]},
    {
        "definitions": {
            "a": {"anyOf": [{"$ref": "#/definitions/b"}, {"type": "null"}]},
            "b": {"properties": {"n": SELF}},
        },
        "properties": {"n": {"$ref": "#/definitions/a"}},
        "not": {"required": ["end"]},
    },
]


@pytest.mark.parametrize("schema", BRANCHING)
def test_a_deep_event_that_does_not_match_is_refused_at_once(schema):
    """The validator would collect the errors of every branch on every level: with 40 levels, 10^12 of them."""
    event: dict[str, object] = {"end": 1}
    for _ in range(40):
        event = {"n": event, "op": "*"}
    assert "too many alternatives" in str(problem(schema, event))


def test_alternatives_for_many_values_are_not_explained():
    """The errors of all branches for every value of a large event would take seconds and gigabytes."""
    lists = {"properties": {"a": {"anyOf": [{"items": STRING}, {"items": NUMBER}]}}}
    assert str(problem(lists, {"a": [None] * 10})).startswith("#/a: [null")
    assert "too many alternatives" in str(problem(lists, {"a": [None] * 100_000}))
    assert str(problem({"properties": {"a": {"items": STRING}}}, {"a": [None] * 100_000})).startswith(
        "#/a/0: null"
    )


def test_a_recursive_schema_without_branches_says_where():
    """There the path to the error is short."""
    tree = {"properties": {"left": SELF, "right": SELF, "name": STRING}, "allOf": [{"properties": {"left": SELF}}]}
    event: dict[str, object] = {"name": 1}
    for _ in range(40):
        event = {"left": event}
    assert str(problem(tree, event)).endswith('left/name: 1 is not of type "string"')


def test_an_explanation_is_short():
    """The validator quotes the value that is wrong, which may be the whole event."""
    assert len(str(problem({"properties": {"a": NUMBER}}, {"a": "x" * 100_000}))) < 2_000


def test_a_violation_says_where():
    """The message has the path to the value and the problem."""
    schema = {"properties": {"a": {"items": STRING}}, "required": ["b"]}
    assert problem(schema, {"a": ["x"], "b": 1}) is None
    assert problem(schema, {"a": ["x", 5], "b": 1}).startswith("#/a/1: ")
    assert problem(schema, {}).startswith("#: ")


def test_draft_4_is_the_default():
    """`exclusiveMinimum` is a flag in draft 4. Other drafts need `$schema`."""
    assert problem({"minimum": 3, "exclusiveMinimum": True}, 3) is not None
    assert problem({"const": 3}, 4) is None
    assert problem({"$schema": "http://json-schema.org/draft-07/schema#", "const": 3}, 4) is not None


def test_formats_are_checked():
    """An invalid date-time is a violation."""
    schema = {"properties": {"at": {"type": "string", "format": "date-time"}}}
    assert problem(schema, {"at": "2024-05-01T12:00:00Z"}) is None
    assert problem(schema, {"at": "soon"}) is not None


@pytest.mark.parametrize("number", [10**30, -(10**30), Decimal("1E+400")])
def test_numbers_of_any_size_are_numbers(number):
    """Limits apply to large numbers as well."""
    assert problem({"properties": {"a": NUMBER}}, {"a": number}) is None
    assert problem({"properties": {"a": STRING}}, {"a": number}) is not None
    if number > 0:
        assert problem({"properties": {"a": {"maximum": 5}}}, {"a": number}) is not None


@pytest.mark.parametrize("schema", [{}, {"additionalProperties": True}, {"type": "object"}])
def test_an_open_schema_lets_everything_in(schema):
    """The common forms of an open schema accept any object."""
    assert problem(schema, {"anything": [1]}) is None


# -- definitions


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["array", "null"]},
        {"allOf": [{"required": ["a"]}, {"type": "array"}]},
        {"anyOf": [{"type": "string"}, {"enum": [1, 2]}]},
        {"oneOf": [{"allOf": [{"type": "array"}]}]},
        {"$ref": "#/definitions/list", "definitions": {"list": {"type": "array"}}},
    ],
)
def test_a_schema_must_accept_an_object(schema):
    """Also if the root is made of other schemas: no event could ever be published."""
    with pytest.raises(Invalid, match="accepts no JSON object"):
        schemas.check_definition(event_type(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "array"}, {"type": "object"}]},
        {"$ref": "#/definitions/one", "definitions": {"one": {"type": "object"}}},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"enum": [1, {}]},
    ],
)
def test_a_root_made_of_other_schemas_may_accept_objects(schema):
    """A choice with an object, a reference to one, and a reference to the root itself."""
    schemas.check_definition(event_type(schema))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nope",
        "[]",
        "5",
        "null",
        '{"type": "nothing"}',
        '{"properties": 5}',
        '{"pattern": "("}',
        '{"$schema": 5}',
        '{"required": []}',
        '{"a": "\\ud800"}',
        "[" * 100_000,
        '{"not":' * 100_000,
    ],
)
def test_a_broken_schema_is_refused(text):
    """The error is Invalid with a message of one line."""
    with pytest.raises(Invalid) as caught:
        schemas.check_definition(event_type(text))
    assert "\n" not in caught.value.detail


@pytest.mark.parametrize(
    "target",
    ["http://example.com/schema.json", "https://example.com/a#/b", "file:///etc/passwd", "#/definitions/none"],
)
def test_references_lead_nowhere_outside(target):
    """Nothing is fetched and no file is read. A reference must name a definition of the same schema."""
    with pytest.raises(Invalid):
        schemas.check_definition(event_type({"properties": {"a": {"$ref": target}}}))


def test_references_within_the_schema_work():
    """Recursive references work as well."""
    tree = {"definitions": {"n": {"properties": {"next": {"$ref": "#/definitions/n"}, "v": STRING}}}}
    schema = {**tree, "$ref": "#/definitions/n"}
    schemas.check_definition(event_type(schema))
    assert problem(schema, {"next": {"next": {"v": "x"}}}) is None
    assert problem(schema, {"next": {"next": {"v": 5}}}) is not None


def test_business_schemas_must_not_define_metadata():
    """Metadata is added to business events. Other categories may define such a field."""
    schema = {"properties": {"metadata": {}}}
    with pytest.raises(Invalid, match="metadata"):
        schemas.check_definition(event_type(schema, category="business"))
    schemas.check_definition(event_type(schema, category="data"))


@pytest.mark.parametrize("keyword", ["not", "patternProperties", "additionalProperties", "additionalItems"])
def test_compatible_schemas_leave_no_loopholes(keyword):
    """These keywords are refused at any depth, but are allowed as names of properties."""
    for schema in (
        {keyword: {}},
        {"properties": {"a": {keyword: {}}}},
        {"items": [{keyword: {}}]},
        {"definitions": {"a": {"allOf": [{keyword: {}}]}}},
    ):
        with pytest.raises(Invalid, match=keyword):
            schemas.check_definition(event_type(schema, "compatible"))
        schemas.check_definition(event_type(schema, "forward"))
    for schema in (
        {"properties": {keyword: STRING}},
        {"definitions": {keyword: STRING}},
        {"enum": [{keyword: 1}]},
        {"default": {keyword: 1}},
    ):
        schemas.check_definition(event_type(schema, "compatible"))


def test_compatible_schemas_know_every_property():
    """Undeclared properties are refused at every depth where properties are declared."""
    schema = {"properties": {"a": {"properties": {"b": STRING}}, "free": {"type": "object"}}}
    assert problem(schema, {"a": {"b": "x"}, "free": {"x": 1}}, "compatible") is None
    assert problem(schema, {"c": 1}, "compatible") is not None
    assert problem(schema, {"a": {"c": 1}}, "compatible") is not None
    assert problem(schema, {"c": 1}, "forward") is None


def test_names_and_values_that_look_like_keywords_are_left_alone():
    """A definition or property called `properties` and an enum of objects are valid."""
    schema = {
        "definitions": {"properties": STRING},
        "properties": {
            "properties": {"$ref": "#/definitions/properties"},
            "kind": {"enum": [{"properties": {"x": 1}}]},
        },
    }
    assert problem(schema, {"properties": "x", "kind": {"properties": {"x": 1}}}, "compatible") is None


# -- versions

BASE = {"type": "object", "properties": {"a": STRING, "o": {"properties": {"p": NUMBER}}}, "required": ["a"]}


def changed(**keywords: object) -> dict[str, object]:
    return {**BASE, **keywords}


def prop(**properties: object) -> dict[str, object]:
    return changed(properties={**BASE["properties"], **properties})


SAME = [BASE, dict(reversed(BASE.items()))]
PATCH = [
    changed(title="t"),
    changed(description="d"),
    prop(a={**STRING, "description": "d"}),
    prop(o={"properties": {"p": {**NUMBER, "title": "t"}}}),
]
MINOR = [
    prop(b=STRING),
    prop(title=STRING),
    prop(o={"properties": {"p": NUMBER, "q": STRING}}),
    changed(definitions={"x": STRING}),
    {**prop(b=STRING), "title": "t"},
]
MAJOR = [
    prop(a=NUMBER),
    changed(properties={"a": STRING}),
    changed(required=["a", "b"]),
    changed(required=["o"]),
    changed(type=["object", "null"]),
    prop(a={**STRING, "maxLength": 5}),
    prop(o={"properties": {"p": STRING}}),
    changed(items=STRING),
    changed(minProperties=1),
]


@pytest.mark.parametrize("mode", ["forward", "none", "compatible"])
@pytest.mark.parametrize(
    ("after", "version"),
    [
        *[(schema, "1.2.3") for schema in SAME],
        *[(schema, "1.2.4") for schema in PATCH],
        *[(schema, "1.3.0") for schema in MINOR],
        *[(schema, "2.0.0") for schema in MAJOR],
    ],
)
def test_the_version_says_what_changed(mode, after, version):
    """Changed texts: patch. New optional properties: minor. Any other change: major, refused if `compatible`."""
    old, new = event_type(BASE, mode), event_type(after, mode, version="9.9.9")
    if version == "2.0.0" and mode == "compatible":
        with pytest.raises(Invalid, match="compatible"):
            schemas.next_version(old, new)
    else:
        assert schemas.next_version(old, new) == version


@pytest.mark.parametrize("name", ["title", "description", "default", "examples", "$comment"])
def test_properties_may_be_called_like_words_for_people(name):
    """A changed type of a property called `description` is not a patch."""
    old = event_type({"properties": {name: STRING}}, "compatible")
    with pytest.raises(Invalid):
        schemas.next_version(old, event_type({"properties": {name: NUMBER}}, "compatible"))
    with pytest.raises(Invalid):
        schemas.next_version(old, event_type({"properties": {}}, "compatible"))


def test_true_is_not_one():
    """A change from 1 to true is a change of the schema."""
    old = event_type({"enum": [1]}, "compatible")
    with pytest.raises(Invalid):
        schemas.next_version(old, event_type({"enum": [True]}, "compatible"))
