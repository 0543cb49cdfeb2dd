"""The metadata of `business` and `data` events: its rules, and the fields that are added to it. Pure functions.

Enrichment rewrites only the top-level `metadata` object of an event. All other bytes stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta, Raw, UnsetType

from strandline.clock import check_rfc3339
from strandline.errors import Invalid

_UUID_FORM = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_UUID = re.compile(_UUID_FORM).fullmatch
_UUID_LINES = re.compile(rf"(?:{_UUID_FORM}\n)*+").fullmatch
_BARE = frozenset({"eid", "occurred_at"})
_OWN = ("received_at", "version", "published_by")
_STRINGS = ("event_type", "flow_id", "partition", "partition_compaction_key")
_KNOWN = frozenset({*_BARE, "parent_eids", "span_ctx", *_STRINGS, *_OWN})
_fields = msgspec.json.Decoder(dict[str, Raw])


class _AnyObject(msgspec.Struct, gc=False):
    """Any JSON object; all of its fields are skipped."""


class Metadata(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The metadata that a publisher may send."""

    eid: str
    occurred_at: str
    event_type: str | UnsetType = UNSET
    flow_id: str | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    partition_compaction_key: str | UnsetType = UNSET
    parent_eids: list[Annotated[str, Meta(pattern=rf"\A{_UUID_FORM}\Z")]] | UnsetType = UNSET
    span_ctx: _AnyObject | UnsetType = UNSET


#: The metadata of an event, and its text, which is a view into the text of the event.
FoundMetadata: TypeAlias = tuple[Metadata, Raw]


class MetadataReader:
    """Accepts metadata that follows the rules, in C."""

    def __init__(self, event_type: str) -> None:
        own = ("event_type", Literal[event_type] | UnsetType, UNSET)
        kind = msgspec.defstruct("OwnMetadata", [own], bases=(Metadata,), forbid_unknown_fields=True, gc=False)
        self._decode: Callable[[Raw], Any] = msgspec.json.Decoder(kind).decode

    def read(self, texts: Sequence[Raw]) -> list[FoundMetadata]:
        """The metadata of events; an error if it is not certain that all of them follow Nakadi's rules."""
        decode = self._decode
        found: list[FoundMetadata] = [(decode(text), text) for text in texts]
        eids = "\n".join([fields.eid for fields, _ in found]) + "\n"
        if eids.count("\n") != len(found) or _UUID_LINES(eids) is None:
            raise ValueError("an eid is not a UUID")
        check_rfc3339([fields.occurred_at for fields, _ in found])
        return found


def find_metadata(item: bytes, event: Mapping[str, Any]) -> FoundMetadata:
    """The metadata of an event that `check_metadata` has accepted."""
    return msgspec.convert(event["metadata"], Metadata), _fields.decode(item)["metadata"]


def check_metadata(event: Mapping[str, Any], event_type: str) -> None:
    """Raise Invalid if the metadata of an event breaks Nakadi's rules."""
    metadata = event.get("metadata")
    if not isinstance(metadata, dict):
        raise Invalid("metadata is missing; it needs at least eid and occurred_at")
    eid = metadata.get("eid")
    if not isinstance(eid, str) or not _UUID(eid):
        raise Invalid(f"metadata.eid must be a UUID like 105a76d8-db49-4144-ace7-e683e8f4ba46, not {eid!r:.60}")
    _check_time(metadata.get("occurred_at"))
    if not metadata.keys() <= _BARE:
        _check_optional(metadata, event_type)


def _check_time(text: Any) -> None:
    if not isinstance(text, str):
        raise Invalid("metadata.occurred_at is missing; write a time like 2024-05-01T12:00:00Z")
    try:
        check_rfc3339([text])
    except ValueError as error:
        raise Invalid(f"metadata.occurred_at: {error}") from None


def _check_optional(metadata: Mapping[str, Any], event_type: str) -> None:
    if unknown := metadata.keys() - _KNOWN:
        raise Invalid(f"metadata.{min(unknown):.60} is not a metadata field")
    for name in _OWN:
        if name in metadata:
            raise Invalid(f"metadata.{name} is set by the platform; leave it out")
    for name in _STRINGS:
        if not isinstance(metadata.get(name, ""), str):
            raise Invalid(f"metadata.{name} must be a string")
    if metadata.get("event_type", event_type) != event_type:
        raise Invalid(f"metadata.event_type must be {event_type!r}, not {metadata['event_type']!r:.220}")
    parents = metadata.get("parent_eids", [])
    if not isinstance(parents, list) or not all(isinstance(p, str) and _UUID(p) for p in parents):
        raise Invalid("metadata.parent_eids must be a list of UUIDs")
    if not isinstance(metadata.get("span_ctx", {}), dict):
        raise Invalid("metadata.span_ctx must be an object")


def check_data_event(event: Mapping[str, Any]) -> None:
    """Raise Invalid if the envelope of a `data` event breaks Nakadi's rules."""
    if not isinstance(event.get("data_type"), str):
        raise Invalid("data_type is missing; it names the type of the changed entity")
    if event.get("data_op") not in ("C", "U", "D", "S"):  # a tuple: the value may not be hashable
        raise Invalid("data_op must be C, U, D or S")
    if not isinstance(event.get("data"), dict):
        raise Invalid("data is missing or not an object")


class Enricher:
    """Completes the metadata of every event of one publish."""

    def __init__(self, event_type: str, version: str, received_at: str, flow_id: str) -> None:
        self._added = {
            "received_at": received_at,
            "event_type": event_type,
            "version": version,
            "flow_id": flow_id,
        }
        self._tail = b"," + msgspec.json.encode(self._added)[1:-1]

    def enrich(self, items: Sequence[bytes], found: Sequence[FoundMetadata], partition: int) -> list[bytes]:
        """Events of one partition with complete metadata; all other bytes are unchanged."""
        tail = b'%b,"partition":"%d"}' % (self._tail, partition)
        values = []
        for item, (fields, text) in zip(items, found, strict=True):
            # The text is a view into the item: its address is its exact place, even if the same bytes occur twice.
            old = pa.py_buffer(text)
            start = old.address - pa.py_buffer(item).address
            end = start + old.size
            if fields.event_type is fields.flow_id is fields.partition is UNSET:
                values.append(item[: end - 1].rstrip() + tail + item[end:])
            else:
                values.append(item[:start] + self._rewritten(text, fields, partition) + item[end:])
        return values

    def _rewritten(self, text: Raw, sent: Metadata, partition: int) -> bytes:
        fields = _fields.decode(text)
        kept = {"flow_id": fields["flow_id"]} if sent.flow_id else {}
        return msgspec.json.encode({**fields, **self._added, "partition": str(partition), **kept})
