"""Items as the values of statements, and rows as values of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from strandline.schedule.dealing import hash_of
from strandline.schedule.model import (
    Body,
    Code,
    ItemAnswer,
    Lease,
    Leased,
    Moment,
    NewMessage,
    Schedule,
    StoredMessage,
)
from strandline.schedule.rules import Found, body_hash

#: The columns of the parts `given` and `new` in the statements.
GIVEN = ("ids", "lanes", "actors", "versions", "moments", "delays", "epochs")
NEW = ("ids", "lanes", "actors", "moments", "delays", "hashes", "body_bytes", "body_hashes")
_DEAD, _DELETED = 1, 2
# Beyond the horizon of every schedule; sums with it fit in 64 bits.
_TOO_FAR_MS = 2**53
#: Larger statements would hold their locks, and on SQLite the whole file, for too long.
_MOST_IN_STATEMENT = 500

Row = tuple[Any, ...]

_DETAILS: dict[Code, str] = {
    "not_found": "there is no such message",
    "already_exists": "a message with this id exists, or was deleted recently",
    "body_too_large": "the body is larger than max_body_bytes of the schedule",
    "not_holder": "another consumer, or none, holds the lease",
    "not_owner": "the message belongs to another producer group",
    "lease_expired": "the lease has expired; the message may be leased to another consumer",
    "lease_active": "a consumer is processing the message; try again after its lease",
    "not_available": "the message is not available",
    "stale_version": "the message has changed since this version",
    "bad_timestamp": "the moment must be later than 5 ms from now; that of an extension within the longest lease",
    "too_far": "the moment is further ahead than max_future_ms of the schedule",
}


class Given(NamedTuple):
    """One item of a statement that changes existing messages. Its actor is a consumer or a producer group."""

    id: str
    lane: int
    actor: str | None = None
    version: int | None = None
    moment: int | None = None
    delay: int | None = None
    epoch: int | None = None


def moment_values(moment: Moment) -> tuple[int | None, int | None]:
    """`moment` and `delay` of a statement."""
    ms = max(-_TOO_FAR_MS, min(moment.ms, _TOO_FAR_MS))
    return (None, ms) if moment.relative else (ms, None)


def new_row(item: NewMessage, lanes: int) -> Row:
    number = hash_of(item.id)
    moment, delay = moment_values(item.moment)
    size = len(item.body.content)
    return item.id, number % lanes, item.producer_group, moment, delay, number, size, body_hash(item.body)


def columns(names: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Any]]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def rounds(numbers: Iterable[int], ids: Sequence[str]) -> Iterator[list[int]]:
    """Split the items into statements, in which an id occurs once. Items of one id keep their order."""
    left = [*numbers]
    turns = [left] if len({ids[number] for number in left}) == len(left) else _turns(left, ids)
    for taken in turns:
        for start in range(0, len(taken), _MOST_IN_STATEMENT):
            yield taken[start : start + _MOST_IN_STATEMENT]


def _turns(numbers: Iterable[int], ids: Sequence[str]) -> list[list[int]]:
    turns: list[list[int]] = []
    seen: Counter[str] = Counter()
    for number in numbers:
        turn = seen[ids[number]]
        seen[ids[number]] += 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(number)
    return turns


# -- rows of `changed`: the message, mark, left_ms, schedule, lane, and for leases is_json and body


def message(row: Row) -> StoredMessage:
    return StoredMessage(*row[:9])


def is_dead(row: Row) -> bool:
    return bool(row[9] == _DEAD)


def was_held(row: Row) -> bool:
    """Whether a message that was leased had been leased before, and not released."""
    return row[10] is None


def lease(row: Row) -> Lease:
    return Lease(StoredMessage(*row[:9]), Body(bytes(row[14]), bool(row[13])))


def leased(changed: Sequence[Row]) -> Leased:
    """What a lease did, in the order of its rows."""
    given = [row for row in changed if not is_dead(row)]
    return Leased(0, [*map(lease, given)], dead=len(changed) - len(given), expired=sum(map(was_held, given)))


def accepted(row: Row) -> ItemAnswer:
    return ItemAnswer(row[0], "ok", version=row[6], at_ms=None if row[9] == _DELETED else row[2])


def refused(message_id: str, code: Code, detail: str | None = None, version: int | None = None) -> ItemAnswer:
    return ItemAnswer(message_id, "error", version=version, code=code, detail=detail or _DETAILS.get(code))


def moves(changed: Iterable[Row]) -> list[tuple[int, int, int, int]]:
    """How the counts change: (schedule, size of the slot, start, change)."""
    sums: dict[tuple[int, int], int] = {}
    for row in changed:
        at_ms, consumer, mark, left_ms, schedule = row[2], row[5], row[9], row[10], row[11]
        if left_ms is not None:
            key = (schedule, left_ms // 60_000)
            sums[key] = sums.get(key, 0) - 1
        if consumer is None and mark == 0:
            key = (schedule, at_ms // 60_000)
            sums[key] = sums.get(key, 0) + 1
    found = [(schedule, minute, change) for (schedule, minute), change in sums.items() if change]
    return [
        (schedule, size, minute * 60_000 // size * size, change)
        for schedule, minute, change in found
        for size in (60_000, 3_600_000)
    ]


# -- rows of `look`


def found(row: Row) -> Found:
    _, now_ms, *limits = row[:9]
    mark, digest = row[18:]
    stored = None if mark is None else StoredMessage(*row[9:18])
    return Found(Schedule(*limits), now_ms, stored, mark == _DEAD, mark == _DELETED, digest or "")
