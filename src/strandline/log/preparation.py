"""Turns the events of a publish into records, or into a report of the rules that they break. No I/O.

If any event of a publish breaks a rule, nothing is written: the events that break it are `failed` at the step that
refused them, and all others are `aborted`.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import msgspec

from strandline.clock import to_rfc3339
from strandline.errors import Invalid, StrandlineError
from strandline.log import partitioning
from strandline.log.enrichment import Enricher, FoundMetadata
from strandline.log.event_checks import EventChecks
from strandline.log.event_json import Events, decode_event, to_items
from strandline.log.model import OUTCOME_UNKNOWN, CatalogEntry, ItemResult, PublishReport, Step
from strandline.log.records import NewRecords
from strandline.log.storage import UNKNOWN, Fence, Placed

_T = TypeVar("_T")
_FIRST = range(1)

#: The order of the timeline that has the records of a publish, or by partition the order for each of them.
Orders = int | Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class CompiledEventType:
    """An event type, compiled for publishing."""

    entry: CatalogEntry
    checks: EventChecks
    key: Callable[[bytes], bytes] | None
    partitions: int
    max_event_bytes: int

    @classmethod
    def of(cls, entry: CatalogEntry, max_event_bytes: int) -> CompiledEventType:
        kind = entry.event_type
        hashed = kind.partition_strategy == "hash"
        key = partitioning.key_reader(kind.partition_key_fields, kind.category) if hashed else None
        return cls(entry, EventChecks(kind), key, kind.partition_count, max_event_bytes)


class Prepared(msgspec.Struct, frozen=True):
    """Valid events, ready to be appended; `members[p]` are the numbers of the events in partition p.

    With a fence, only its newest holder can append them.
    """

    items: Sequence[bytes]
    batches: Mapping[int, NewRecords]
    members: Mapping[int, Sequence[int]]
    fence: Fence | None = None

    @property
    def count(self) -> int:
        return len(self.items)

    def outcome(self, placed: Mapping[int, Placed], orders: Orders) -> PublishReport | StrandlineError:  # noqa: ARG002 - others do
        """What the publisher gets when the storage has answered for every partition."""
        return report(self, placed)

    def unknown(self) -> PublishReport | StrandlineError:
        """What the publisher gets if it is unknown whether the records are stored."""
        return unknown_report(self.items)


class _Rejected(Exception):
    def __init__(self, step: Step, failures: Mapping[int, str]) -> None:
        self.step = step
        self.failures = failures


def prepare(
    compiled: CompiledEventType, items: Sequence[bytes], now_ms: int, flow_id: str
) -> Prepared | PublishReport:
    """Check, place and enrich all events of a publish."""
    try:
        found = _validate(compiled, items)
        members, keys = _place(compiled, items)
        whole = NewRecords(now_ms, items, keys)
        if len(members) == 1:
            batches = dict.fromkeys(members, whole)
        else:
            batches = {p: whole.pick(numbers) for p, numbers in members.items()}
        if found:
            kind = compiled.entry.event_type
            enricher = Enricher(kind.name, kind.schema.version, to_rfc3339(now_ms), flow_id)
            batches = _enrich(enricher, batches, members, found, compiled.max_event_bytes)
    except _Rejected as rejected:
        return _rejection(items, rejected)
    return Prepared(items, batches, members)


def undecodable(items: Sequence[bytes]) -> PublishReport | None:
    """The report on a publish in which some events are not JSON; None if all of them are."""
    broken = {}
    for number, item in enumerate(items):
        try:
            decode_event(item)
        except Invalid as error:
            broken[number] = error.detail
    return _rejection(items, _Rejected("validating", broken)) if broken else None


def _validate(compiled: CompiledEventType, items: Sequence[bytes]) -> Sequence[FoundMetadata]:
    """The metadata of the events, if they have any."""
    found, failures = compiled.checks.check(items)
    limit = compiled.max_event_bytes
    if max(map(len, items), default=0) > limit:
        for number, size in enumerate(map(len, items)):
            if size > limit:
                failures[number] = f"the event has {size} bytes; at most {limit} are allowed"
    if failures:
        raise _Rejected("validating", failures)
    return found


def _place(
    compiled: CompiledEventType, items: Sequence[bytes]
) -> tuple[dict[int, Sequence[int]], Sequence[bytes] | None]:
    """The numbers of the events by partition, and the keys of all events if the strategy uses keys."""
    count, total = compiled.partitions, len(items)
    if compiled.entry.event_type.partition_strategy == "random":
        start = int(random.random() * count)  # noqa: S311 - not for security
        if total == 1:
            return {start: _FIRST}, None
        return {(start + turn) % count: range(turn, total, count) for turn in range(min(count, total))}, None
    if compiled.key is None:
        return _grouped(_chosen(lambda item: partitioning.user_partition(decode_event(item), count), items)), None
    keys = _chosen(compiled.key, items)
    return _grouped(partitioning.hash_partitions(keys, count)), keys


def _chosen(choose: Callable[[bytes], _T], items: Sequence[bytes]) -> list[_T]:
    """What each event decides about its place."""
    chosen: list[_T] = []
    failures: dict[int, str] = {}
    for number, item in enumerate(items):
        try:
            chosen.append(choose(item))
        except Invalid as error:
            failures[number] = error.detail
    if failures:
        raise _Rejected("partitioning", failures)
    return chosen


def _grouped(partitions: Sequence[int]) -> dict[int, Sequence[int]]:
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number, partition in enumerate(partitions):
        members[partition].append(number)
    return {**members}


def _enrich(
    enricher: Enricher,
    batches: Mapping[int, NewRecords],
    members: Mapping[int, Sequence[int]],
    found: Sequence[FoundMetadata],
    limit: int,
) -> dict[int, NewRecords]:
    enriched = {}
    failures: dict[int, str] = {}
    for partition, batch in batches.items():
        numbers = members[partition]
        values = enricher.enrich(
            cast("Sequence[bytes]", batch.values), [found[number] for number in numbers], partition
        )
        if max(map(len, values)) > limit:
            too_long = f"the event has more than {limit} bytes after enrichment"
            failures.update((n, too_long) for n, value in zip(numbers, values, strict=True) if len(value) > limit)
        enriched[partition] = NewRecords(batch.timestamp_ms, values, batch.keys)
    if failures:
        raise _Rejected("enriching", failures)
    return enriched


def _rejection(events: Sequence[bytes], rejected: _Rejected) -> PublishReport:
    def item(number: int) -> ItemResult:
        eid = _eid(events[number])
        if number in rejected.failures:
            return ItemResult("failed", rejected.step, rejected.failures[number], eid)
        return ItemResult("aborted", "none", "another event of this publish was refused", eid)

    return PublishReport(len(events), tuple(item(number) for number in range(len(events))))


def report(prepared: Prepared, placed: Mapping[int, Placed]) -> PublishReport:
    """The outcome of every event, from the outcome of each partition."""
    for part in placed.values():
        if part.error is not None:
            break
    else:
        return PublishReport(len(prepared.items))
    items: list[ItemResult] = [ItemResult("failed", "publishing")] * prepared.count
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
    try:
        event = decode_event(item)
    except Invalid:
        return None
    metadata = event.get("metadata") if isinstance(event, dict) else None
    eid = metadata.get("eid") if isinstance(metadata, dict) else None
    return eid if isinstance(eid, str) else None
