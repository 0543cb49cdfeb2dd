"""The metadata of `business` and `data` events: its rules, and the fields that are added to it. Pure functions.

Enrichment rewrites only the top-level `metadata` object of an event. All other bytes stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from strandline.clock import parse_rfc3339
from strandline.errors import Invalid

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_BARE = frozenset({"eid", "occurred_at"})
_REWRITTEN = frozenset({"event_type", "flow_id", "partition"})
_OWN = ("received_at", "version", "published_by")
_STRINGS = ("event_type", "flow_id", "partition", "partition_compaction_key")
_KNOWN = frozenset({*_BARE, "parent_eids", "span_ctx", *_STRINGS, *_OWN})
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


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
        parse_rfc3339(text)
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
        encode = msgspec.json.encode
        self._added = {
            "received_at": encode(received_at),
            "event_type": encode(event_type),
            "version": encode(version),
            "flow_id": encode(flow_id),
        }
        self._tail = "".join(f',"{name}":{value.decode()}' for name, value in self._added.items()).encode()

    def enrich(self, raw: bytes, metadata: Mapping[str, Any], partition: int) -> bytes:
        """The event with complete metadata; all other bytes are unchanged."""
        old = _fields.decode(raw)["metadata"]
        # `old` is a view into `raw`, so its address is the exact place, even if the same bytes occur elsewhere.
        start = pa.py_buffer(old).address - pa.py_buffer(raw).address
        body = bytes(old)
        if metadata.keys().isdisjoint(_REWRITTEN):
            new = b'%b%b,"partition":"%d"}' % (body[:-1].rstrip(), self._tail, partition)
        else:
            new = self._rewrite(body, metadata, partition)
        return raw[:start] + new + raw[start + len(body) :]

    def _rewrite(self, body: bytes, metadata: Mapping[str, Any], partition: int) -> bytes:
        fields: dict[str, Any] = dict(_fields.decode(body))
        for name, value in self._added.items():
            if name != "flow_id" or not metadata.get("flow_id"):
                fields[name] = msgspec.Raw(value)
        fields["partition"] = str(partition)
        return msgspec.json.encode(fields)
