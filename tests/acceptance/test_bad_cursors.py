"""Invalid cursors: every route that accepts cursors reports the reason."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from requests_as_is import assert_problem, send
from services import Server

CURSORS = "X-Nakadi-Cursors"
STREAM = "/event-types/placed/events"
PARTITIONS = "/event-types/placed/partitions"
BAD_CURSORS: list[tuple[str | None, str | None, str]] = [
    (None, "BEGIN", "NULL_PARTITION"),
    ("0", None, "NULL_OFFSET"),
    ("2", "BEGIN", "PARTITION_NOT_FOUND"),
    ("-1", "BEGIN", "PARTITION_NOT_FOUND"),
    ("", "BEGIN", "PARTITION_NOT_FOUND"),
    ("0 ", "BEGIN", "PARTITION_NOT_FOUND"),
    ("9" * 5000, "BEGIN", "PARTITION_NOT_FOUND"),
    ("0", "99", "UNAVAILABLE"),
    ("0", "001-0001-000000000000000099", "UNAVAILABLE"),
    ("0", "001-0009-000000000000000000", "UNAVAILABLE"),
    ("0", "", "INVALID_FORMAT"),
    ("0", "-2", "INVALID_FORMAT"),
    ("0", "Begin", "INVALID_FORMAT"),
    ("0", "001-0001-1", "INVALID_FORMAT"),
    ("0", "002-0001-000000000000000000", "INVALID_FORMAT"),
    ("0", "９", "INVALID_FORMAT"),
    ("0", "9" * 5000, "INVALID_FORMAT"),
]  # fmt: skip
# Reasons that have another name in cursor arithmetic.
ARITHMETIC = {"INVALID_FORMAT": "CURSOR_FORMAT_EXCEPTION"}


def _cursor(partition: str | None, offset: str | None) -> dict[str, Any]:
    return {"partition": partition, "offset": offset}


@pytest.mark.parametrize(("partition", "offset", "reason"), BAD_CURSORS)
def test_cursors_that_cannot_be_used(target: Server, partition: str | None, offset: str | None, reason: str):
    """Every route reports the same reason and, if the partition exists, the available range."""
    cursor = _cursor(partition, offset)
    text = json.dumps([cursor])
    shift = [{**cursor, "shift": 0}]
    shifted = assert_problem(send(target, "POST", "/event-types/placed/shifted-cursors", shift), 422)
    assert shifted["reason"] == ARITHMETIC.get(reason, reason)
    problems = [
        assert_problem(send(target, "GET", STREAM, headers={CURSORS: text}), 412),
        assert_problem(send(target, "GET", f"{PARTITIONS}?cursors={quote(text)}"), 422),
        assert_problem(send(target, "POST", "/event-types/placed/cursors-lag", [cursor]), 422),
    ]
    for problem in problems:
        assert problem["code"] == "invalid_cursor"
        assert problem["reason"] == reason
    for problem in (*problems, shifted):
        if "PARTITION" not in reason:
            assert problem["oldest_available_offset"] == "001-0001-000000000000000000"
            assert problem["newest_available_offset"] == "001-0001-000000000000000002"
            assert "001-0001-000000000000000000 to 001-0001-000000000000000002" in problem["detail"]


@pytest.mark.parametrize("offset", ["001-0001-000000000000000003", "001-0001-" + "9" * 18, "3"])
def test_cursors_past_the_end_of_a_closed_timeline(target: Server, offset: str):
    """An offset past the end of a closed timeline is INVALID_OFFSET on every route, with the available range."""
    cursor = _cursor("0", offset)
    text = json.dumps([cursor])
    pair = {"initial_cursor": cursor, "final_cursor": _cursor("0", "BEGIN")}
    for answer, status in (
        (send(target, "GET", "/event-types/moved/events", headers={CURSORS: text}), 412),
        (send(target, "GET", f"/event-types/moved/partitions?cursors={quote(text)}"), 422),
        (send(target, "POST", "/event-types/moved/cursors-lag", [cursor]), 422),
        (send(target, "POST", "/event-types/moved/shifted-cursors", [{**cursor, "shift": 0}]), 422),
    ):
        problem = assert_problem(answer, status)
        assert (problem["code"], problem["reason"]) == ("invalid_cursor", "INVALID_OFFSET")
        assert problem["oldest_available_offset"] == "001-0001-000000000000000000"
        assert problem["newest_available_offset"] == "001-0002-000000000000000000"
    answer = send(target, "POST", "/event-types/moved/cursor-distances", [pair])
    assert assert_problem(answer, 422)["reason"] == "INVALID_OFFSET"
    at_the_end = [{**_cursor("0", "001-0001-000000000000000002"), "shift": 1}]
    shifted = send(target, "POST", "/event-types/moved/shifted-cursors", at_the_end)
    assert shifted.json == [_cursor("0", "001-0002-000000000000000000")]


DISTANCES = [
    # initial, final, reason
    (("0", "BEGIN"), ("1", "BEGIN"), "CURSORS_WITH_DIFFERENT_PARTITION"),
    (("0", "BEGIN"), ("0", "001-0009-000000000000000000"), "TIMELINE_NOT_FOUND"),
    (("0", "001-0000-000000000000000000"), ("0", "BEGIN"), "TIMELINE_NOT_FOUND"),
    (("0", "first"), ("0", "BEGIN"), "CURSOR_FORMAT_EXCEPTION"),
    (("0", "BEGIN"), ("0", "99"), "UNAVAILABLE"),
    ((None, "BEGIN"), ("0", "BEGIN"), "NULL_PARTITION"),
    (("0", "BEGIN"), ("0", None), "NULL_OFFSET"),
    (("2", "BEGIN"), ("2", "BEGIN"), "PARTITION_NOT_FOUND"),
]


@pytest.mark.parametrize(("initial", "final", "reason"), DISTANCES)
def test_distances_that_do_not_exist(target: Server, initial: Any, final: Any, reason: str):
    """A distance between cursors that cannot be compared is refused with the reason."""
    query = [{"initial_cursor": _cursor(*initial), "final_cursor": _cursor(*final)}]
    answer = send(target, "POST", "/event-types/placed/cursor-distances", query)
    assert assert_problem(answer, 422)["reason"] == reason


@pytest.mark.parametrize("by", [4, -4, 2**63 - 1, -(2**63)])
def test_shifts_past_either_end(target: Server, by: int):
    """A shift past the available range is UNAVAILABLE."""
    cursor = {**_cursor("0", "001-0001-000000000000000000"), "shift": by}
    problem = assert_problem(send(target, "POST", "/event-types/placed/shifted-cursors", [cursor]), 422, "shift")
    assert problem["reason"] == "UNAVAILABLE"


@pytest.mark.parametrize("by", ["1", 1.5, None, 2**63, 10**400])
def test_shifts_that_are_no_numbers(target: Server, by: Any):
    """A shift must be a 64-bit integer."""
    cursor = {**_cursor("0", "BEGIN"), "shift": by}
    assert_problem(send(target, "POST", "/event-types/placed/shifted-cursors", [cursor]), 422, "shift")


def test_two_cursors_for_one_partition(target: Server):
    """Two cursors for one partition are refused."""
    twice = [_cursor("0", "BEGIN"), _cursor("0", "0")]
    text = json.dumps(twice)
    assert_problem(send(target, "GET", STREAM, headers={CURSORS: text}), 422, "two cursors")
    assert_problem(send(target, "GET", f"{PARTITIONS}?cursors={quote(text)}"), 422, "two cursors")
    assert_problem(send(target, "POST", "/event-types/placed/cursors-lag", twice), 422, "two cursors")
