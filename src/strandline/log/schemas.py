"""JSON schemas: compilation, and the rules for changes. Pure functions."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from strandline.errors import Invalid
from strandline.log.model import CompatibilityMode, EventType

_NOT_IN_COMPATIBLE = ("not", "patternProperties", "additionalProperties", "additionalItems")
_META = frozenset({"title", "description", "default", "examples", "$comment"})
# Keywords whose members are named by the user, and keywords whose values are data, not schemas.
_NAMED = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default", "examples"})
# More than a realistic schema needs; an event is still checked in milliseconds.
_MOST_VISITS = 100_000
# The most errors of branches that the validator may collect for one event, some 10 µs and 2 kB each.
_MOST_ERRORS = 20_000
# The validator quotes the whole value, which may be the whole event.
_MOST_EXPLANATION = 1_000

Check = Callable[[Any], str | None]


def parse(text: str) -> dict[str, Any]:
    """The schema object of a schema text."""
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise Invalid(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise Invalid('the schema must be a JSON object like {"type": "object"}')
    return schema


def check_definition(event_type: EventType) -> None:
    """Refuse a schema that does not compile or contradicts the event type."""
    schema = parse(event_type.schema.schema)
    compile_check(event_type.schema.schema, event_type.compatibility_mode)
    _check_cost(schema)
    if not _accepts_objects(schema, schema, set()):
        raise Invalid('the schema accepts no JSON object, and every event is one; its "type" must be "object"')
    if event_type.category == "business" and "metadata" in schema.get("properties", {}):
        raise Invalid("the schema of a business event type must not define metadata; the platform adds it")
    if event_type.compatibility_mode == "compatible":
        for keyword in _keywords(schema):
            if keyword in _NOT_IN_COMPATIBLE:
                raise Invalid(f"{keyword!r} is not allowed in a schema of compatibility mode compatible")


def _accepts_objects(schema: Any, root: Any, followed: set[str]) -> bool:
    """Whether the keywords that name types and values allow an object. Every reference is followed once."""
    if not isinstance(schema, dict):
        return schema is not False
    types = schema.get("type", "object")
    if "object" not in (types if isinstance(types, list) else [types]):
        return False
    if not any(isinstance(value, dict) for value in schema.get("enum", [{}])):
        return False
    needed = [*schema.get("allOf", [])]
    reference = schema.get("$ref", "")
    if reference.startswith("#") and reference not in followed:
        followed.add(reference)
        needed.append(_target(root, reference))
    choices = [schema[key] for key in ("anyOf", "oneOf") if key in schema]
    return all(_accepts_objects(part, root, followed) for part in needed) and all(
        any(_accepts_objects(part, root, followed) for part in parts) for parts in choices
    )


def effective(text: str, mode: CompatibilityMode) -> dict[str, Any]:
    """The schema that events are checked against. Draft 4 unless `$schema` says otherwise."""
    schema = parse(text)
    schema.setdefault("$schema", "http://json-schema.org/draft-04/schema#")
    try:
        return _closed(schema) if mode == "compatible" else schema
    except RecursionError as error:
        raise Invalid(f"the schema is not valid: {_first_line(error)}") from None


@functools.lru_cache(maxsize=1024)
def compile_check(text: str, mode: CompatibilityMode) -> Check:
    """A function that returns what is wrong with an event, or None."""
    schema = effective(text, mode)
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)
        most_explained = _most_explained(schema)
    except (ValueError, RecursionError, UnicodeError) as error:
        raise Invalid(f"the schema is not valid: {_first_line(error)}") from None
    valid = validator.is_valid

    def check(event: Any) -> str | None:
        try:
            if valid(event):
                return None
            if not _has_at_most(most_explained, event):
                return "#: the event does not match its schema, which has too many alternatives to say where"
            validator.validate(event)
        except jsonschema_rs.ValidationError as error:
            return _violation(error)
        except ValueError as error:  # the validator has a depth limit
            return f"the event cannot be checked against its schema: {_first_line(error)}"
        return None

    return check


def _most_explained(schema: Any) -> float:
    """The number of values up to which an event that does not match is explained.

    The validator collects the errors of every branch for every value: the time and the memory for that grow with
    both, and exponentially with the depth of the event if the branches refer to themselves.
    """
    known: dict[str, int] = {}
    errors = sum(_visits(branches, schema, known) for branches in _branches(schema))
    if not errors:
        return math.inf
    return 0 if _is_recursive(schema, schema, {}) else _MOST_ERRORS // errors


def _branches(part: Any) -> Iterator[Any]:
    """The branches of every anyOf and oneOf."""
    for one in part.values() if isinstance(part, dict) else part:
        if isinstance(one, dict | list):
            yield from _branches(one)
    if isinstance(part, dict):
        yield from (part[key] for key in ("anyOf", "oneOf") if key in part)


def _has_at_most(most: float, event: Any) -> bool:
    """Whether an event consists of so many values or fewer."""
    found, parts = 0, [event]
    while parts and found <= most:
        part = parts.pop()
        found += 1
        if isinstance(part, dict | list):
            parts.extend(part.values() if isinstance(part, dict) else part)
    return found <= most


def _is_recursive(part: Any, root: Any, done: dict[str, bool]) -> bool:
    """Whether a reference leads to itself. `done`: the references that were followed to their end."""
    if isinstance(part, list):
        return any(_is_recursive(one, root, done) for one in part)
    if not isinstance(part, dict):
        return False
    if not part.keys().isdisjoint(("$recursiveRef", "$dynamicRef")):
        return True
    reference = part.get("$ref")
    if isinstance(reference, str) and not done.get(reference):
        if reference in done:
            return True
        done[reference] = False
        if _is_recursive(_target(root, reference), root, done):
            return True
        done[reference] = True
    return any(_is_recursive(value, root, done) for value in part.values())


def _check_cost(schema: dict[str, Any]) -> None:
    """Refuse references that multiply: one event could block the validator, and all its callers, for hours."""
    try:
        cost = _visits(schema, schema, {})
    except RecursionError:
        raise Invalid("the references of the schema are nested too deeply") from None
    if cost > _MOST_VISITS:
        raise Invalid(f"the references of the schema multiply; an event may pass at most {_MOST_VISITS} schemas")


def _visits(part: Any, root: Any, known: dict[str, int]) -> int:
    """The number of schemas that an event is checked against, with references; a cycle counts once."""
    if isinstance(part, list):
        return sum(_visits(one, root, known) for one in part)
    if not isinstance(part, dict):
        return 0
    visits = 1
    for key, value in part.items():
        if key == "$ref" and isinstance(value, str):
            if value not in known:
                known[value] = 0
                known[value] = _visits(_target(root, value), root, known)
            visits += known[value]
        elif key not in {"definitions", "$defs"}:
            visits += _visits(value, root, known)
    return visits


def _target(root: Any, reference: str) -> Any:
    found = root
    for step in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _violation(error: jsonschema_rs.ValidationError) -> str:
    where = "/".join(str(step) for step in error.instance_path)
    text = f"#/{where}: {error.message}" if where else f"#: {error.message}"
    return text if len(text) <= _MOST_EXPLANATION else f"{text[:_MOST_EXPLANATION]}…"


def next_version(old: EventType, new: EventType) -> str:
    """The version of a changed schema, depending on the change; Invalid if the mode forbids it."""
    before, after = parse(old.schema.schema), parse(new.schema.schema)
    major, minor, patch = (int(part) for part in old.schema.version.split("."))
    if _equal(before, after):
        return old.schema.version
    if _equal(_structure(before), _structure(after)):
        return f"{major}.{minor}.{patch + 1}"
    if _only_adds_optional(before, after):
        return f"{major}.{minor + 1}.0"
    if old.compatibility_mode == "compatible":
        raise Invalid("compatibility mode compatible allows only new optional properties and definitions")
    return f"{major + 1}.0.0"


def _closed(schema: Any) -> Any:
    """The schema without additional properties wherever it lists properties."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _below(key, value, _closed) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def _structure(schema: Any) -> Any:
    """The schema without annotations, which do not affect validation."""
    if isinstance(schema, list):
        return [_structure(part) for part in schema]
    if isinstance(schema, dict):
        return {key: _below(key, value, _structure) for key, value in schema.items() if key not in _META}
    return schema


def _below(key: str, value: Any, act: Callable[[Any], Any]) -> Any:
    """The value of a keyword, with `act` applied to the schemas in it."""
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: act(part) for name, part in value.items()}
    return act(value)


def _equal(left: Any, right: Any) -> bool:
    """Equality in JSON, where true is not 1."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _only_adds_optional(before: Any, after: Any) -> bool:
    """Whether `after` only adds optional properties or definitions to `before`."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return _equal(before, after)
    for name in {*before, *after} - _META:
        if name in {"properties", "definitions", "$defs"}:
            old, new = before.get(name, {}), after.get(name, {})
            if not isinstance(old, dict) or not isinstance(new, dict) or not old.keys() <= new.keys():
                return False
            if not all(_only_adds_optional(old[key], new[key]) for key in old):
                return False
        elif name == "items":
            if not _only_adds_optional(before.get(name), after.get(name)):
                return False
        elif not _equal(before.get(name), after.get(name)):
            return False
    return True


def _keywords(schema: Any) -> Iterator[str]:
    """All keywords of a schema, including nested ones; property names are not keywords."""
    if isinstance(schema, list):
        for part in schema:
            yield from _keywords(part)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            if key in _NAMED and isinstance(value, dict):
                yield from _keywords([*value.values()])
            elif key not in _DATA:
                yield from _keywords(value)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
