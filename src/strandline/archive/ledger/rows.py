"""The values in the ledger's rows, and the checks before it changes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from strandline.archive.model import (
    HOUR_MS,
    ArchivedFile,
    Barrier,
    Claim,
    Counts,
    Decision,
    ExpiredRange,
    Hour,
    Period,
    Standing,
    StoredPartition,
)
from strandline.errors import Conflict, Invalid, LeaseLost
from strandline.log.cursors import Position

_barrier = msgspec.json.Decoder(Barrier)
_children = msgspec.json.Decoder(dict[str, int])


def text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def hour(*row: Any) -> Hour:
    event_type, hour_ms, revision, written, stale, ends, flagged_ms, epoch = row
    barrier = _barrier.decode(ends) if ends else None
    return Hour(event_type, hour_ms, revision, written, bool(stale), barrier, flagged_ms, epoch)


def period(path: str, start_ms: int, revision: int, written: int, children: str) -> Period:
    return Period(path, start_ms, revision, written, _children.decode(children))


def gap(partition: int, after_timeline: int | None, after_offset: int | None, *rest: int) -> ExpiredRange:
    timeline, last, *more = rest
    after = None if after_timeline is None or after_offset is None else Position(after_timeline, after_offset)
    return ExpiredRange(partition, after, Position(timeline, last), *more)


def gap_values(event_type: str, gap: ExpiredRange) -> dict[str, Any]:
    """The parameters of the statement `add_gap`."""
    values = msgspec.structs.asdict(gap)
    after_timeline, after_offset = values.pop("after") or (None, None)
    timeline, last = values.pop("last")
    after = {"after_timeline": after_timeline, "after_offset": after_offset}
    return {"event_type": event_type, "timeline": timeline, "last": last, **after, **values}


def standing(found: Sequence[tuple[Any, ...]]) -> Standing | None:
    """From one row for each partition, or one row without a partition."""
    if not found:
        return None
    partitions = {
        number: StoredPartition(Position(timeline, offset), *shift)
        for number, timeline, offset, *shift in (row[10:] for row in found)
        if number is not None
    }
    epoch, incarnation, read_ms, flagged_ms, *counts = found[0][:10]
    return Standing(epoch, incarnation, read_ms, flagged_ms, partitions, Counts(*counts))


def stored_values(event_type: str, number: int, stored: StoredPartition) -> dict[str, Any]:
    """The parameters of the statement `store`."""
    values = msgspec.structs.asdict(stored)
    timeline, position = values.pop("position")
    return {"event_type": event_type, "partition": number, "timeline": timeline, "position": position, **values}


# -- what the ledger refuses


def replaced(claim: Claim) -> LeaseLost:
    return LeaseLost(f"another process archives {claim.event_type!r} now (after epoch {claim.epoch})")


def check_counts(decision: Decision) -> None:
    """Every record that was read must be in a listed file or counted as dropped."""
    listed = dict.fromkeys(("data", "late", "quarantine"), 0)
    for file in decision.files:
        listed[file.kind] += file.rows
    counts = decision.counts
    if not counts.balanced or [*listed.values()] != [counts.archived, counts.late, counts.quarantined]:
        raise Invalid(f"records are missing or counted twice: {counts}, in files {listed}")


def check_start(decision: Decision, standing: Standing | None) -> None:
    """A decision must begin where the previous one ended, in every partition."""
    stored = standing.partitions if standing else {}
    for number, position in decision.before.items():
        now = stored[number].position if number in stored else None
        if now != position:
            raise Conflict(f"partition {number} is archived up to {now}, not up to {position}")


def check_files(files: Sequence[ArchivedFile], listed: Sequence[str], flagged: Collection[int]) -> None:
    """A file is listed once, and only late files can be added to a flagged hour."""
    if listed:
        raise Conflict(f"{listed[0]} is listed already")
    for file in files:
        if file.kind != "quarantine" and (file.hour_ms in flagged) != (file.kind == "late"):
            raise Conflict(f"{file.path} is {file.kind}, which does not fit the flag of its hour")


def check_reading(hour_ms: int, barrier: Barrier, grace_ms: int, now_ms: int) -> None:
    if not hour_ms + HOUR_MS + grace_ms <= barrier.read_ms <= now_ms:
        raise Invalid(f"ends read at {barrier.read_ms} cannot be the barrier of the hour {hour_ms} at {now_ms}")


def check_children(before: Mapping[str, int], children: Mapping[str, int]) -> None:
    for path, revision in children.items():
        if revision < before.get(path, 0):
            raise Conflict(f"{path} has revision {before[path]} already, not {revision}")
