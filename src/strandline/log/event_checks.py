"""The rules for events before they get a partition: JSON, metadata, schema. No I/O.

Typed decoders, in C, accept most publishes. They accept no event that breaks a rule, but may refuse a valid one.
If they refuse an event, all events of the publish are checked rule by rule, which also finds out what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw

from strandline.errors import Invalid
from strandline.log import schemas
from strandline.log.enrichment import (
    FoundMetadata,
    MetadataReader,
    check_data_event,
    check_metadata,
    find_metadata,
)
from strandline.log.event_json import UNDECODED, ArrayItems, decode_event
from strandline.log.model import Category, EventType
from strandline.log.schema_types import object_type

#: By category, the fields of an event that its schema does not describe.
_ENVELOPES: dict[Category, dict[str, Any]] = {
    "undefined": {},
    "business": {"metadata": Raw},
    "data": {"metadata": Raw, "data_type": str, "data_op": Literal["C", "U", "D", "S"]},
}

# Decoders refuse an integer with more digits. At least four digits of such an integer are in the sample.
_MAX_DIGITS, _SAMPLED = 4300, 1024
_DIGITS = re.compile(rb"[0-9]{4}").search


class EventChecks:
    """The rules of one event type."""

    def __init__(self, kind: EventType) -> None:
        self._name, self._category = kind.name, kind.category
        self._metadata = None if kind.category == "undefined" else MetadataReader(kind.name)
        self._violation = schemas.compile_check(kind.schema.schema, kind.compatibility_mode)
        accepted, self._unchecked = _typed(kind)
        self._read: Callable[[bytes], Any] = msgspec.json.Decoder(accepted).decode
        # Reads all events of a publish at once. Not for metadata, which must be a part of the single event's text,
        # nor for events that become Python objects, which need much memory.
        self._read_array: Callable[[bytes], Any] | None = None
        if self._metadata is None and self._unchecked is None:
            self._read_array = msgspec.json.Decoder(list[accepted]).decode  # type: ignore[valid-type]  # a type made at run time

    def check(self, items: Sequence[bytes]) -> tuple[list[FoundMetadata], dict[int, str]]:
        """The metadata of the events, if they have any; and by number of an event, what is wrong with it."""
        try:
            return self._accept(items), {}
        except (*UNDECODED, Invalid):
            return self._check_each(items)

    def _accept(self, items: Sequence[bytes]) -> list[FoundMetadata]:
        """The metadata of valid events; an error if one of them is not certainly valid."""
        if self._read_array is not None and isinstance(items, ArrayItems):
            self._read_array(items.array)
            if not items.array.isascii() or max(map(len, items), default=0) > _MAX_DIGITS:
                for item in items:
                    _check_skipped(item)
            return []
        read, unchecked = self._read, self._unchecked
        metadata = []
        for item in items:
            event = read(item)
            if not item.isascii() or len(item) > _MAX_DIGITS:
                _check_skipped(item)
            if unchecked is not None and self._violation(unchecked(event, item)) is not None:
                raise Invalid("an event violates its schema")
            if self._metadata is not None:
                metadata.append(event.metadata)
        return self._metadata.read(metadata) if self._metadata is not None else []

    def _check_each(self, items: Sequence[bytes]) -> tuple[list[FoundMetadata], dict[int, str]]:
        found: list[FoundMetadata] = []
        failures: dict[int, str] = {}
        for number, item in enumerate(items):
            try:
                found.extend(self._checked(item))
            except Invalid as error:
                failures[number] = error.detail
        return found, failures

    def _checked(self, item: bytes) -> list[FoundMetadata]:
        """The metadata of a valid event, if it has any; Invalid says what is wrong."""
        event = decode_event(item)
        if not isinstance(event, dict):
            raise Invalid("an event must be a JSON object")
        if self._category == "undefined":
            self._check_schema(event)
            return []
        check_metadata(event, self._name)
        if self._category == "data":
            check_data_event(event)
        self._check_schema(event["data"] if self._category == "data" else _without_metadata(event))
        return [find_metadata(item, event)]

    def _check_schema(self, value: Any) -> None:
        if (violation := self._violation(value)) is not None:
            raise Invalid(violation)


def _check_skipped(item: bytes) -> None:
    """Check what typed decoders do not check in fields that they skip."""
    item.decode()
    if len(item) > _MAX_DIGITS and _DIGITS(item[::_SAMPLED]):
        decode_event(item)


def _typed(kind: EventType) -> tuple[Any, Callable[[Any, bytes], Any] | None]:
    """A type that accepts valid events.

    If the type does not cover the schema, also a function to the part of an event that the schema describes.
    """
    schema = schemas.effective(kind.schema.schema, kind.compatibility_mode)
    envelope = _ENVELOPES[kind.category]
    if kind.category == "data":
        data = object_type(schema, {})
        whole = object_type({}, {**envelope, "data": data or dict})
        return whole, None if data else lambda event, _: event.data
    if typed := object_type(schema, envelope):
        return typed, None
    if kind.category == "undefined":
        return dict, lambda event, _: event
    return object_type({}, envelope), lambda _, item: _without_metadata(decode_event(item))


def _without_metadata(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "metadata"}
