"""Where a streaming query is: its offsets as Spark keeps them, and the rules that move them. Pure.

Spark compares offsets as JSON text, so every position must have exactly one spelling: canonical cursors, sorted
keys, all partitions. A position includes the id of its event type: an event type that was deleted and created
again has other records at the same cursors.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import msgspec

from strandline.errors import Invalid

_K = TypeVar("_K", bound=Hashable)


class QueryPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a query is in one event type.

    `skipped` counts the records that expired before they were read, by partition. `began` is set in the end of a
    query's first batch: the start of that batch. If the query is killed in its first batch, Spark asks for the
    initial offset again, which may be another one by then.
    """

    id: str
    cursors: dict[str, str]
    skipped: dict[str, int] = {}
    began: dict[str, str] = {}


QueryPositions = Mapping[str, QueryPosition]


def parse(offsets: Mapping[str, Any]) -> dict[str, QueryPosition]:
    try:
        return msgspec.convert(offsets, dict[str, QueryPosition])
    except msgspec.ValidationError as error:
        raise Invalid(f"this is not an offset of a Strandline source: {error}") from error


def dump(places: QueryPositions) -> dict[str, Any]:
    """The form that Spark stores. Equal positions become equal texts."""
    return msgspec.to_builtins(places, order="sorted")  # type: ignore[no-any-return]


def with_beginning(start: QueryPositions, end: QueryPositions) -> dict[str, QueryPosition]:
    """The end of a query's first batch, with the start of that batch in `began`."""
    return {
        name: place if place == start.get(name) else msgspec.structs.replace(place, began=start[name].cursors)
        for name, place in end.items()
    }


def shares(lags: Mapping[_K, int], limit: int) -> dict[_K, int]:
    """How many records of each partition to read: at most `limit` together, shared as evenly as the lags allow.

    Small lags are read completely, so that no partition starves. The remainder goes to the largest lags.
    """
    given = dict.fromkeys(lags, 0)
    waiting = [key for key, lag in lags.items() if lag > 0]
    while waiting and limit >= len(waiting):
        step = min(limit // len(waiting), *(lags[key] - given[key] for key in waiting))
        for key in waiting:
            given[key] += step
        limit -= step * len(waiting)
        waiting = [key for key in waiting if given[key] < lags[key]]
    for key in sorted(waiting, key=lambda key: given[key] - lags[key])[:limit]:
        given[key] += 1
    return given
