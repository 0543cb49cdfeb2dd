"""Event times: from a field of the JSON, or the time of publication. Works on whole Arrow columns.

A compiled decoder extracts the field and skips all others; texts are converted in bulk. If a batch has rows that
do not fit, its rows are converted one by one, with the same result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.clock import parse_rfc3339
from strandline.errors import Invalid

PUBLISHED = "@timestamp"

NO_JSON = "not JSON"
NO_TIME = "no event time"
NOT_A_TIME = "unparsable event time"

#: The milliseconds of every row, and the reason for each row that has no usable time.
Times = tuple[npt.NDArray[np.int64], dict[int, str]]

_Found = str | int | None
_PLAIN = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:[0-5]\d(\.\d{1,9})?([Zz]|[+-]\d\d:[0-5]\d)$"
_LARGEST = 2**62
_decode_any = msgspec.json.Decoder()


class EventTimes:
    """Where times come from: `a.b` (a field), `a.b|@timestamp` (the field, else the publication), `@timestamp`.

    A field holds an RFC 3339 time with an offset, or milliseconds since 1970.
    """

    def __init__(self, field: str) -> None:
        path, _, otherwise = field.partition("|")
        if otherwise not in {"", PUBLISHED} or not all(path.split(".")) or (otherwise and path == PUBLISHED):
            raise Invalid(
                f"archive.time_field must look like a.b, a.b|{PUBLISHED} or {PUBLISHED}, not {field!r:.80}"
            )
        self._published = path == PUBLISHED
        self._otherwise = bool(otherwise)
        self._path = path.split(".")
        self._decode, self._get = _compile(self._path)

    def of(self, values: pa.Array, timestamps: npt.NDArray[np.int64]) -> Times:
        """The times of events, given as JSON with the timestamps of their publication."""
        if self._published:
            return timestamps, {}
        try:
            found: list[Any] = [*map(self._get, map(self._decode, values.to_pylist()))]
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            return self._one_by_one([self._look(value) for value in values.to_pylist()], timestamps)
        fast = _in_bulk(found)
        if fast is None or (fast.null_count and not self._otherwise):
            return self._one_by_one(found, timestamps)
        if fast.null_count:
            fast = pc.coalesce(fast, pa.array(timestamps))
        return fast.to_numpy(), {}

    def _look(self, value: bytes | None) -> _Found | _Bad:
        """The value at the path, for rows that the compiled decoder may not be able to decode."""
        if value is None:
            return None
        try:
            place: Any = _decode_any.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return _Bad(NO_JSON)
        for name in self._path:
            place = place.get(name) if isinstance(place, dict) else None
        if place is None or isinstance(place, str) or type(place) is int:
            return place
        return _Bad(NOT_A_TIME)

    def _one_by_one(self, found: Sequence[_Found | _Bad], timestamps: npt.NDArray[np.int64]) -> Times:
        times = timestamps.copy()
        bad: dict[int, str] = {}
        for row, value in enumerate(found):
            time_ms = _time(value)
            if isinstance(time_ms, int):
                times[row] = time_ms
            elif time_ms.reason != NO_TIME or not self._otherwise:
                bad[row] = time_ms.reason
        return times, bad


class _Bad(msgspec.Struct):
    reason: str


def _compile(path: Sequence[str]) -> tuple[Callable[[bytes], Any], Callable[[Any], Any]]:
    """A decoder for just this path, and a function that extracts the value from its result."""
    kind: Any = str | int | None
    default: Any = None
    for name in reversed(path):
        # Short-lived objects without cycles: the garbage collector need not track them.
        kind = msgspec.defstruct("Part", [("part", kind, default)], rename={"part": name}, gc=False, frozen=True)
        default = kind()
    return msgspec.json.Decoder(kind).decode, operator.attrgetter(".".join(["part"] * len(path)))


def _in_bulk(found: list[Any]) -> pa.Array | None:
    """Milliseconds if all values are plain texts or all are numbers; None if rows must be converted one by one."""
    try:
        texts = pa.array(found, pa.string())
    except (pa.ArrowException, TypeError, OverflowError):
        return _numbers(found)
    if pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py() is False:
        return None
    try:
        nanos = texts.cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    except pa.ArrowException:
        return None
    # Round down, also before 1970.
    return pa.array(
        np.floor_divide(nanos.fill_null(0).to_numpy(), 1_000_000), mask=nanos.is_null().to_numpy(False)
    )


def _numbers(found: list[Any]) -> pa.Array | None:
    try:
        numbers = pa.array(found, pa.int64())
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    extremes = pc.min_max(numbers)
    if max(abs(extremes["min"].as_py()), abs(extremes["max"].as_py())) > _LARGEST:
        return None
    return numbers


def _time(value: _Found | _Bad) -> int | _Bad:
    if isinstance(value, _Bad):
        return value
    if value is None:
        return _Bad(NO_TIME)
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else _Bad(NOT_A_TIME)
    try:
        return parse_rfc3339(value)
    except ValueError:
        return _Bad(NOT_A_TIME)
