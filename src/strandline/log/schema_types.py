"""JSON schemas as msgspec types, so that one decode in C checks most events. Pure functions.

A type accepts only what its schema accepts. It may refuse what the schema accepts, such as a key that occurs twice
with values of different types; the validator decides about what a type refuses. A schema has no type if it uses a
keyword that is not listed here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw

_Keywords = Mapping[str, Any]

_ANNOTATIONS = frozenset(
    {"$schema", "title", "description", "default", "examples", "$comment", "definitions", "$defs"}
)
# A float is exact up to here, so that a bound means the same for integers and floats.
_EXACT = 1 << 53


class _Untyped(Exception):
    """No type expresses the schema."""


def object_type(schema: Mapping[str, Any], envelope: Mapping[str, Any]) -> type[msgspec.Struct] | None:
    """A type for objects that the schema accepts, if there is one. `envelope`: required fields outside of it."""
    try:
        if "object" not in _types(schema):
            return None
        made = _object(_keywords(schema, ["object"]), envelope)
        msgspec.json.Decoder(made)
    except (
        _Untyped,
        TypeError,
        ValueError,
        LookupError,
        RecursionError,
    ):  # msgspec refuses some names, bounds and unions
        return None
    return made


def _types(schema: Mapping[str, Any]) -> Sequence[str]:
    found = schema.get("type", "string" if "enum" in schema else "object")
    return found if isinstance(found, list) else [found]


def _keywords(schema: Mapping[str, Any], types: Sequence[str]) -> _Keywords:
    """The keywords of the schema, all of which must belong to these types."""
    found = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
    if not {"type"}.union(*(_TYPES[name][0] for name in types)) >= found.keys():
        raise _Untyped
    return found


def _value(schema: Any) -> Any:
    """The type of a property or an array item; Raw for any value."""
    if schema is True or not {*schema} - _ANNOTATIONS:
        return Raw
    types = _types(schema)
    keywords = _keywords(schema, types)
    return functools.reduce(operator.or_, [_TYPES[name][1](keywords) for name in types])


def _string(keywords: _Keywords) -> Any:
    values = keywords.get("enum")
    if values is None:
        return Annotated[str, Meta(min_length=keywords.get("minLength"), max_length=keywords.get("maxLength"))]
    if {"type": "string", **keywords} != {"type": "string", "enum": values}:
        raise _Untyped
    if not all(isinstance(value, str) for value in values):
        raise _Untyped
    return Literal[tuple(values)]


def _number(kind: type[int | float], keywords: _Keywords) -> Any:
    low, high = keywords.get("minimum"), keywords.get("maximum")
    if any(abs(bound) > _EXACT for bound in (low, high) if bound is not None):
        raise _Untyped
    return Annotated[kind, Meta(ge=low, le=high)]


def _array(keywords: _Keywords) -> Any:
    item = _value(keywords.get("items", True))
    limits = Meta(min_length=keywords.get("minItems"), max_length=keywords.get("maxItems"))
    return Annotated[list[item], limits]  # type: ignore[valid-type]  # a type made at run time


def _object(keywords: _Keywords, envelope: Mapping[str, Any]) -> type[msgspec.Struct]:
    properties, required = keywords.get("properties", {}), keywords.get("required", ())
    opened = keywords.get("additionalProperties", True)
    types = {name: _value(properties.get(name, True)) for name in (*properties, *required)}
    if not isinstance(opened, bool) or not types.keys().isdisjoint(envelope):
        raise _Untyped
    if not opened and not properties.keys() >= {*required}:  # no object is valid
        raise _Untyped
    fields: list[Any] = [*envelope.items()]
    names = {}
    for number, (name, kind) in enumerate(types.items()):
        # An optional field of any type is needed only if all names must be known.
        if name in required or kind is not Raw or not opened:
            own = f"field_{number}"  # a JSON key need not be a Python name
            names[own] = name
            fields.append((own, kind) if name in required else (own, kind, UNSET))
    return msgspec.defstruct(
        "Typed", fields, rename=names, forbid_unknown_fields=not opened, kw_only=True, gc=False
    )


#: By JSON type: its keywords, and the function that makes a Python type of them.
_TYPES: Mapping[str, tuple[Collection[str], Callable[[_Keywords], Any]]] = {
    "string": (("minLength", "maxLength", "enum"), _string),
    "integer": (("minimum", "maximum"), lambda keywords: _number(int, keywords)),
    "number": (("minimum", "maximum"), lambda keywords: _number(float, keywords)),
    "boolean": ((), lambda _: bool),
    "null": ((), lambda _: None),
    "array": (("items", "minItems", "maxItems"), _array),
    "object": (("properties", "required", "additionalProperties"), lambda keywords: _object(keywords, {})),
}
