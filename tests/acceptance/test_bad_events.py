"""One invalid event makes the whole publish fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from requests_as_is import EID, MAX_EVENT, METADATA, send
from services import Server

LONG = "x" * (MAX_EVENT + 1)
DATA = {"metadata": METADATA, "data_type": "t", "data_op": "C", "data": {}}


def fact(**more: Any) -> dict[str, Any]:
    return {"metadata": {**METADATA, **more}}


BAD_EVENTS: list[tuple[str, Any, str, str]] = [
    # event type, event, step, a word of its detail
    ("plain", 1, "validating", "object"),
    ("plain", None, "validating", "object"),
    ("plain", [], "validating", "object"),
    ("plain", {"a": LONG}, "validating", str(MAX_EVENT)),
    ("checked", {}, "validating", "required"),
    ("checked", {"n": "one"}, "validating", "#/n"),
    ("checked", {"n": 1.5}, "validating", "#/n"),
    ("checked", b'{"n": ' + b'{"a":' * 400 + b"1" + b"}" * 401, "validating", "Recursion"),
    ("checked", b'{"n": ' + b"9" * 5000 + b"}", "validating", "range"),
    ("checked", b'{"n": "\\ud800"}', "validating", "JSON"),
    ("keyed", {}, "partitioning", "key.id"),
    ("keyed", {"key": 1}, "partitioning", "key.id"),
    ("keyed", {"key": {"id": None}}, "partitioning", "key.id"),
    ("keyed", {"key": {"id": [1]}}, "partitioning", "key.id"),
    ("placed", {}, "partitioning", "metadata.partition"),
    ("placed", {"metadata": 7}, "partitioning", "metadata.partition"),
    ("placed", {"metadata": {"partition": "2"}}, "partitioning", "2"),
    ("placed", {"metadata": {"partition": 0}}, "partitioning", "0"),
    ("placed", {"metadata": {"partition": "9" * 5000}}, "partitioning", "999"),
    ("facts", {}, "validating", "metadata"),
    ("facts", {"metadata": None}, "validating", "metadata"),
    ("facts", {"metadata": "none"}, "validating", "metadata"),
    ("facts", {"metadata": {"occurred_at": "2024-05-01T12:00:00Z"}}, "validating", "eid"),
    ("facts", {"metadata": {"eid": EID}}, "validating", "occurred_at"),
    ("facts", fact(eid="1"), "validating", "eid"),
    ("facts", fact(eid=7), "validating", "eid"),
    ("facts", fact(eid=EID + "\n"), "validating", "eid"),
    ("facts", fact(occurred_at="yesterday"), "validating", "occurred_at"),
    ("facts", fact(occurred_at=1714564800), "validating", "occurred_at"),
    ("facts", fact(occurred_at="2024-05-01T12:00:00"), "validating", "occurred_at"),
    ("facts", fact(occurred_at="2024-02-30T12:00:00Z"), "validating", "occurred_at"),
    ("facts", fact(occurred_at="2024-05-01T12:00:00+99:99"), "validating", "occurred_at"),
    ("facts", fact(occurred_at="0000-05-01T12:00:00Z"), "validating", "occurred_at"),
    ("facts", fact(received_at="2024-05-01T12:00:00Z"), "validating", "received_at"),
    ("facts", fact(event_type="plain"), "validating", "event_type"),
    ("facts", fact(flow_id=7), "validating", "flow_id"),
    ("facts", fact(parent_eids="none"), "validating", "parent_eids"),
    ("facts", fact(parent_eids=["none"]), "validating", "parent_eids"),
    ("facts", fact(span_ctx=7), "validating", "span_ctx"),
    ("facts", fact(mood="good"), "validating", "mood"),
    ("facts", {**fact(), "a": "x" * (MAX_EVENT - 130)}, "enriching", str(MAX_EVENT)),
    ("changes", {**DATA, "metadata": {}}, "validating", "eid"),
    ("changes", {**DATA, "data_op": "X"}, "validating", "data_op"),
    ("changes", {**DATA, "data_op": []}, "validating", "data_op"),
    ("changes", {**DATA, "data_op": {}}, "validating", "data_op"),
    ("changes", {**DATA, "data_type": None}, "validating", "data_type"),
    ("changes", {**DATA, "data": []}, "validating", "data"),
]  # fmt: skip
GOOD_EVENTS = {
    "plain": {"a": 1},
    "checked": {"n": 1},
    "keyed": {"key": {"id": 1}},
    "placed": {"metadata": {"partition": "0"}},
    "facts": fact(),
    "changes": DATA,
}


def _event_label(case: tuple[Any, ...]) -> str:
    return f"{case[0]} {case[1]}"[:90].encode("unicode_escape").decode()


@pytest.mark.parametrize(("name", "event", "step", "word"), BAD_EVENTS, ids=map(_event_label, BAD_EVENTS))
def test_one_bad_event_among_good_ones(target: Server, name: str, event: Any, step: str, word: str):
    """The whole publish is refused, every event has a result, and nothing is written."""
    before = send(target, "GET", f"/event-types/{name}/partitions").json
    good = json.dumps(GOOD_EVENTS[name]).encode()
    bad = event if isinstance(event, bytes) else json.dumps(event).encode()
    answer = send(target, "POST", f"/event-types/{name}/events", b"[" + b",".join([good, bad, good]) + b"]")
    assert send(target, "GET", f"/event-types/{name}/partitions").json == before
    assert answer.status == 422, answer.body
    assert answer.headers["content-type"] == "application/json"
    first, failed, last = answer.json
    assert {(item["publishing_status"], item["step"]) for item in (first, last)} == {("aborted", "none")}
    assert (failed["publishing_status"], failed["step"]) == ("failed", step)
    assert word in failed["detail"]
    assert first.get("eid") == GOOD_EVENTS[name].get("metadata", {}).get("eid")
