"""Turns the events of a publish into records, or into a report of the rules that they break. No I/O.

If any event of a publish breaks a rule, nothing is written: the events that break it are `failed` at the step that
refused them, and all others are `aborted`.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from strandline.clock import to_rfc3339
from strandline.errors import Invalid, Malformed, TooLarge
from strandline.log import partitioning, schemas
from strandline.log.enrichment import Enricher, check_data_event, check_metadata
from strandline.log.model import OUTCOME_UNKNOWN, CatalogEntry, ItemResult, PublishReport, Step
from strandline.log.records import NewRecords
from strandline.log.storage import UNKNOWN, Placed

#: Dicts, JSON texts of single events, one JSON array, or rows of a table.
Events: TypeAlias = bytes | str | Iterable[Mapping[str, Any] | bytes | str] | pa.Table | pa.RecordBatch

# Lone surrogates are accepted here; the check of the single event refuses them.
_AS_IT_IS = ("utf-8", "surrogatepass")
_SPACE = b" \t\r\n"
_CLOSING = {b"[": b"]", b"{": b"}"}
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[^"\[\]{}]*+(?:%b[^"\[\]{}]*+)*+' % _STRING
# Objects and arrays without nested ones, the most common events, are one token.
_TOKEN = re.compile(rb'\{%b\}|\[%b\]|%b|["\[\]{},]' % (_FLAT, _FLAT, _STRING), re.DOTALL)


class _Object(msgspec.Struct, gc=False):
    """Any JSON object; all of its fields are skipped."""


_split = msgspec.json.Decoder(list[msgspec.Raw])
_skim = msgspec.json.Decoder(_Object)
_decode = msgspec.json.Decoder()


def _number(text: str) -> float | Decimal:
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


# Numbers beyond the range of a double become Decimal; this decoder is only for events that the plain one refused.
_decode_exactly = msgspec.json.Decoder(float_hook=_number)
_encode = msgspec.json.Encoder()


@dataclass(frozen=True)
class CompiledEventType:
    """An event type, compiled for publishing."""

    entry: CatalogEntry
    check: schemas.Check
    key: Callable[[Mapping[str, Any]], bytes] | None
    max_event_bytes: int
    opaque: bool = False  # every JSON object is valid, and nothing depends on its fields

    @classmethod
    def of(cls, entry: CatalogEntry, max_event_bytes: int) -> CompiledEventType:
        kind = entry.event_type
        hashed = kind.partition_strategy == "hash"
        check = schemas.compile_check(kind.schema.schema, kind.compatibility_mode)
        return cls(
            entry,
            check,
            partitioning.key_reader(kind.partition_key_fields, kind.category) if hashed else None,
            max_event_bytes,
            check is schemas.accept and kind.category == "undefined" and kind.partition_strategy == "random",
        )


@dataclass(frozen=True)
class Prepared:
    """Valid events, ready to be appended; `members[p]` are the numbers of the events in partition p."""

    items: Sequence[bytes]
    batches: Mapping[int, NewRecords]
    members: Mapping[int, Sequence[int]]

    @property
    def count(self) -> int:
        return len(self.items)


class _Rejected(Exception):
    def __init__(self, step: Step, failures: Mapping[int, str]) -> None:
        self.step = step
        self.failures = failures


def to_items(events: Events, max_items: int) -> list[bytes]:
    """The JSON of every event, byte for byte as it was sent."""
    if isinstance(events, bytes | bytearray | memoryview | str):
        items = _split_array(events.encode(*_AS_IT_IS) if isinstance(events, str) else bytes(events))
    elif isinstance(events, pa.Table | pa.RecordBatch):
        items = [_encode.encode(row) for row in events.to_pylist()]
    else:
        items = [event if type(event) is bytes else _item(event) for event in events]
    if len(items) > max_items:
        raise TooLarge(f"{len(items)} events in one publish; at most {max_items} are allowed: split the publish")
    return items


def _item(event: Mapping[str, Any] | bytes | str) -> bytes:
    if isinstance(event, bytes | bytearray):
        return bytes(event)
    if isinstance(event, str):
        return event.encode(*_AS_IT_IS)
    try:
        return _encode.encode(event)
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise Malformed(f"an event cannot be written as JSON: {error}") from None


def _split_array(body: bytes) -> list[bytes]:
    try:
        return [bytes(raw) for raw in _split.decode(body)]
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        if body.lstrip()[:1] != b"[":
            raise Malformed(f"the body must be a JSON array of events: {error}") from None
        return _split_leniently(body, error)


def _split_leniently(body: bytes, cause: Exception) -> list[bytes]:
    """Find the items of an array in which some items cannot be decoded, so that only those fail.

    Only strings and brackets are matched, so invalid UTF-8 and deep nesting do not matter.
    """
    items: list[bytes] = []
    start = body.index(b"[") + 1
    closing = [b"]"]
    for token in _TOKEN.finditer(body, start):
        mark = token[0]
        if mark in _CLOSING:
            closing.append(_CLOSING[mark])
        elif mark == b"," and len(closing) == 1:
            items.append(body[start : token.start()].strip(_SPACE))
            start = token.end()
        elif mark in {b"]", b"}"}:
            if closing.pop() != mark:
                break
            if not closing:
                items.append(body[start : token.start()].strip(_SPACE))
                start = token.end()
                break
        elif mark == b'"':  # the string is not terminated
            break
    if closing or not all(items) or body[start:].strip(_SPACE):
        raise Malformed(f"the body is not a JSON array of events: {cause}") from None
    return items


def prepare(
    compiled: CompiledEventType, items: Sequence[bytes], now_ms: int, flow_id: str
) -> Prepared | PublishReport:
    """Check, place and enrich all events of a publish."""
    events, broken = ((), {}) if compiled.opaque and _are_objects(items) else _decode_all(items)
    try:
        _validate(compiled, items, events, broken)
        members, keys = _place(compiled, len(items), events)
        values = _enrich(compiled, items, events, members, now_ms, flow_id)
    except _Rejected as rejected:
        return _rejection(items, rejected)
    whole = NewRecords(now_ms, values, keys)
    return Prepared(items, {p: whole.pick(numbers) for p, numbers in members.items()}, members)


def undecodable(items: Sequence[bytes]) -> PublishReport | None:
    """The report on a publish in which some events are not JSON; None if all of them are."""
    _, broken = _decode_all(items)
    return _rejection(items, _Rejected("validating", broken)) if broken else None


def _are_objects(items: Sequence[bytes]) -> bool:
    """Whether all items are JSON objects, without decoding their fields; False if that is not certain."""
    try:
        for item in items:
            _skim.decode(item)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return all(map(bytes.isascii, items))  # the decoder does not validate UTF-8 in fields that it skips


def _decode_all(items: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
    """All events, and the errors of those that are not JSON by event number."""
    try:
        return [_decode.decode(item) for item in items], {}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        broken: dict[int, str] = {}
        return [_decode_one(number, item, broken) for number, item in enumerate(items)], broken


def _decode_one(number: int, item: bytes, failures: dict[int, str]) -> Any:
    try:
        return _decode_exactly.decode(item)
    except (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError) as error:
        failures[number] = f"the event is not JSON: {error}"
        return None


def _validate(
    compiled: CompiledEventType, items: Sequence[bytes], events: Sequence[Any], broken: Mapping[int, str]
) -> None:
    failures = dict(broken)
    limit = compiled.max_event_bytes
    if max(map(len, items), default=0) > limit:
        for number, size in enumerate(map(len, items)):
            if size > limit:
                failures[number] = f"the event has {size} bytes; at most {limit} are allowed"
    for number, event in enumerate(events):
        if number not in failures and (detail := _problem(compiled, event)) is not None:
            failures[number] = detail
    if failures:
        raise _Rejected("validating", failures)


def _problem(compiled: CompiledEventType, event: Any) -> str | None:
    kind = compiled.entry.event_type
    if not isinstance(event, dict):
        return "an event must be a JSON object"
    if kind.category == "undefined":
        return compiled.check(event)
    try:
        check_metadata(event, kind.name)
        if kind.category == "data":
            check_data_event(event)
            return compiled.check(event["data"])
    except Invalid as error:
        return error.detail
    return compiled.check({key: value for key, value in event.items() if key != "metadata"})


def _place(
    compiled: CompiledEventType, total: int, events: Sequence[Any]
) -> tuple[dict[int, Sequence[int]], Sequence[bytes] | None]:
    """The numbers of the events by partition, and the keys of all events if the strategy uses keys."""
    kind = compiled.entry.event_type
    count = kind.partition_count
    if kind.partition_strategy == "random":
        start = random.randrange(count)  # noqa: S311 - not for security
        return {(start + turn) % count: range(turn, total, count) for turn in range(min(count, total))}, None

    def choose(event: Any) -> Any:
        return compiled.key(event) if compiled.key else partitioning.user_partition(event, count)

    chosen: list[Any] = []
    failures: dict[int, str] = {}
    for number, event in enumerate(events):
        try:
            chosen.append(choose(event))
        except Invalid as error:
            failures[number] = error.detail
    if failures:
        raise _Rejected("partitioning", failures)
    if compiled.key is None:
        return _grouped(chosen), None
    return _grouped(partitioning.hash_partitions(chosen, count)), chosen


def _grouped(partitions: Sequence[int]) -> dict[int, Sequence[int]]:
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number, partition in enumerate(partitions):
        members[partition].append(number)
    return {**members}


def _enrich(
    compiled: CompiledEventType,
    items: Sequence[bytes],
    events: Sequence[Any],
    members: Mapping[int, Sequence[int]],
    now_ms: int,
    flow_id: str,
) -> Sequence[bytes]:
    kind = compiled.entry.event_type
    if kind.category == "undefined":
        return items
    enricher = Enricher(kind.name, kind.schema.version, to_rfc3339(now_ms), flow_id)
    values = [*items]
    for partition, numbers in members.items():
        for number in numbers:
            values[number] = enricher.enrich(items[number], events[number]["metadata"], partition)
    limit = compiled.max_event_bytes
    if max(map(len, values), default=0) > limit:
        too_long = f"the event has more than {limit} bytes after enrichment"
        raise _Rejected("enriching", {n: too_long for n, value in enumerate(values) if len(value) > limit})
    return values


def _rejection(events: Sequence[bytes], rejected: _Rejected) -> PublishReport:
    def item(number: int) -> ItemResult:
        eid = _eid(events[number])
        if number in rejected.failures:
            return ItemResult("failed", rejected.step, rejected.failures[number], eid)
        return ItemResult("aborted", rejected.step, "another event of this publish was refused", eid)

    return PublishReport(len(events), tuple(item(number) for number in range(len(events))))


def report(prepared: Prepared, placed: Mapping[int, Placed]) -> PublishReport:
    """The outcome of every event, from the outcome of each partition."""
    if all(part.complete for part in placed.values()):
        return PublishReport(prepared.count)
    items: list[ItemResult] = [ItemResult("failed")] * prepared.count
    for partition, numbers in prepared.members.items():
        part = placed[partition]
        for number, offset in zip(numbers, part.offsets, strict=True):
            items[number] = _stored(offset, part, _eid(prepared.items[number]))
    return PublishReport(prepared.count, tuple(items))


def _stored(offset: int, part: Placed, eid: str | None) -> ItemResult:
    if offset >= 0:
        return ItemResult("submitted", "publishing", "", eid)
    detail = OUTCOME_UNKNOWN if offset == UNKNOWN else (part.error.detail if part.error else "not stored")
    return ItemResult("failed", "publishing", detail, eid)


def split_report(whole: PublishReport, counts: Sequence[int]) -> list[PublishReport]:
    """The reports of several publishes that were stored as one, in order."""
    if whole.ok:
        return [PublishReport(count) for count in counts]
    parts, start = [], 0
    for count in counts:
        items = whole.items[start : start + count]
        good = all(item.publishing_status == "submitted" for item in items)
        parts.append(PublishReport(count, () if good else items))
        start += count
    return parts


def unknown_report(events: Sequence[bytes]) -> PublishReport:
    """The report when it is unknown whether any of the events is stored."""
    return PublishReport(
        len(events),
        tuple(ItemResult("failed", "publishing", OUTCOME_UNKNOWN, _eid(event)) for event in events),
    )


def unanswered_report(events: Events) -> PublishReport:
    """The report on a publish whose storage did not answer in time."""
    return unknown_report(to_items(events, sys.maxsize))


def _eid(item: bytes) -> str | None:
    event = _decode_one(0, item, {})
    metadata = event.get("metadata") if isinstance(event, dict) else None
    eid = metadata.get("eid") if isinstance(metadata, dict) else None
    return eid if isinstance(eid, str) else None
