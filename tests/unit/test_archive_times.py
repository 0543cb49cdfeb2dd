"""Event times, converted in bulk and one by one."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.archive import times
from strandline.archive.times import NO_JSON, NO_TIME, NOT_A_TIME, EventTimes
from strandline.clock import parse_rfc3339
from strandline.errors import Invalid

NOON = parse_rfc3339("2024-05-01T12:00:00Z")


def of(field: str, *values: bytes | None, published: int = 77) -> tuple[list[int], dict[int, str]]:
    found, bad = EventTimes(field).of(pa.array(values, pa.binary()), np.full(len(values), published))
    return [ms for row, ms in enumerate(found.tolist()) if row not in bad], bad


def event(time: object) -> bytes:
    return msgspec.json.encode({"a": {"occurred_at": 5}, "metadata": {"eid": "x", "occurred_at": time}})


def test_the_time_is_found_at_its_path():
    """Fields of the same name at other paths and the order of fields do not matter."""
    decoys = b'{"occurred_at":"no","x":{"metadata":{"occurred_at":"no"}},'
    value = decoys + b'"metadata":{"occurred_at":"2024-05-01T12:00:00Z"}}'
    assert of("metadata.occurred_at", value) == ([NOON], {})
    assert of("metadata.occurred_at", b' { "metadata"\n: {"occurred_at" : "2024-05-01T12:00:00Z"} } ') == (
        [NOON],
        {},
    )
    assert of("placed_at", b'{"placed_at":"2024-05-01T12:00:00Z"}') == ([NOON], {})
    assert of("a.b.c", b'{"a":{"b":{"c":"2024-05-01T12:00:00Z"}}}') == ([NOON], {})


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-01T12:00:00Z",
        "2024-05-01t12:00:00z",
        "2024-05-01 12:00:00.0Z",
        "2024-05-01T12:00:00.000000000Z",
        "2024-05-01T12:00:00.000999999Z",
        "2024-05-01T14:00:00+02:00",
        "2024-05-01T05:30:00.000-06:30",
        "2024-05-01T11:59:60Z",
    ],
)
def test_every_spelling_of_a_time_is_the_same_time(text):
    """A time is parsed the same way alone and in a batch with others."""
    assert of("metadata.occurred_at", event(text)) == ([NOON], {})
    assert of("metadata.occurred_at", event("2024-05-01T12:00:00Z"), event(text)) == ([NOON, NOON], {})


def test_numbers_are_milliseconds():
    """Numbers are milliseconds in a batch of numbers and in a batch with texts."""
    assert of("metadata.occurred_at", event(NOON), event(0), event(-5)) == ([NOON, 0, -5], {})
    assert of("metadata.occurred_at", event(7), event("2024-05-01T12:00:00Z")) == ([7, NOON], {})


def test_the_time_of_publication_can_be_asked_for():
    """`@timestamp` does not depend on the content of the event."""
    assert of("@timestamp", b"no JSON at all", None) == ([77, 77], {})


@pytest.mark.parametrize(
    "value", [b"{}", b'{"metadata":{}}', b'{"metadata":null}', b'{"metadata":7}', b"[1]", None]
)
def test_without_a_field_there_is_no_time_or_that_of_publication(value):
    """The setting decides between an error and the time of publication. Other rows are not affected."""
    timed = event(5)
    assert of("metadata.occurred_at", timed, value) == ([5], {1: NO_TIME})
    assert of("metadata.occurred_at|@timestamp", timed, value) == ([5, 77], {})
    assert of("metadata.occurred_at|@timestamp", event("2024-05-01T12:00:00Z"), value) == ([NOON, 77], {})


@pytest.mark.parametrize(
    "time",
    [
        *("", "soon", "2024-05-01", "2024-05-01T12:00:00", "2024-05-01T12:00Z", "2024-13-01T12:00:00Z"),
        *("2024-02-30T12:00:00Z", "2024-05-01T24:00:00Z", "2024-05-01T12:00:00+99:00", "٢٠٢٤-05-01T12:00:00Z"),
        *(
            1.5,
            True,
            [],
            {},
            ["2024-05-01T12:00:00Z"],
            2**62 + 1,
            2**63,
            -(2**80),
            "2024-05-01T12:00:00.1234567891Z",
        ),
    ],
)
@pytest.mark.parametrize("field", ["metadata.occurred_at", "metadata.occurred_at|@timestamp"])
def test_what_is_no_time_is_told(time, field):
    """An unparsable field is reported, and never replaced by the time of publication."""
    assert of(field, event(5), event(time), event(6)) == ([5, 6], {1: NOT_A_TIME})
    assert of(field, event(time)) == ([], {0: NOT_A_TIME})


@pytest.mark.parametrize("value", [b"", b"{", b"nope", b'{"metadata":{"occurred_at":5}} x', b"[" * 100_000])
def test_what_is_no_json_is_told(value):
    """An event that is not JSON is reported, also if events without the field are allowed."""
    assert of("metadata.occurred_at|@timestamp", event(5), value) == ([5], {1: NO_JSON})


@pytest.mark.parametrize(
    "field", ["", "a..b", ".a", "a|b", "a|@timestamp|b", "@timestamp|@timestamp", "|@timestamp"]
)
def test_a_field_that_cannot_be_is_refused(field):
    """The message names the setting."""
    with pytest.raises(Invalid, match=r"archive\.time_field"):
        EventTimes(field)


digits = st.integers(0, 99).map(lambda number: f"{number:02d}")
texts = st.builds(
    "{}-{}-{}{}{}:{}:{}{}{}".format,
    st.integers(0, 9999).map(lambda year: f"{year:04d}"),
    *(digits, digits, st.sampled_from(["T", " ", "t", "x"]), digits, digits, digits),
    st.sampled_from(["", ".5", ".123", ".1234567", ".123456789", "."]),
    st.sampled_from(["Z", "z", "", "+00:00", "-11:30", "+23:59", "+24:00", "+02:60"]),
)


@given(st.lists(texts | st.integers(-(2**64), 2**64) | st.none() | st.text(max_size=5), max_size=5))
@example(["0000-01-01T00:00:00Z"])
@example(["1969-12-31T23:59:59.999999999Z"])
@example(["1600-01-01T00:00:00Z"])
@example(["2300-01-01T00:00:00Z"])
@example(["2024-05-01T12:00:00+24:00"])
@example(["2024-05-01T00:00:00.1Z", "2024-05-01T00:00:00-23:59"])
def test_in_bulk_is_the_same_as_one_by_one(drawn):
    """The result for a row does not depend on the other rows of its batch."""
    alone = [of("metadata.occurred_at|@timestamp", event(one)) for one in drawn]
    together, bad = of("metadata.occurred_at|@timestamp", *map(event, drawn))
    assert together == [ms for found, _ in alone for ms in found]
    assert bad == {row: wrong[0] for row, (_, wrong) in enumerate(alone) if wrong}
    exact = [_exact(one) for one in drawn]
    assert together == [ms for ms in exact if ms is not None]


def _exact(value: object) -> int | None:
    if value is None:
        return 77
    if isinstance(value, int):
        return value if abs(value) <= times._LARGEST else None
    try:
        return parse_rfc3339(value)
    except ValueError:
        return None
