"""From published events to records or a report: every rule, item by item, without a storage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Malformed, Unavailable
from strandline.log import preparation
from strandline.log.event_json import to_items
from strandline.log.model import (
    OUTCOME_UNKNOWN,
    CatalogEntry,
    EventType,
    ItemResult,
    PublishReport,
    Schema,
    Timeline,
)
from strandline.log.preparation import CompiledEventType, Prepared
from strandline.log.storage import FAILED, UNKNOWN, Placed

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
NOW_MS = 1_714_564_800_000
DEEP = b"[" * 5_000 + b"]" * 5_000


def compiled(limit: int = 10_000, **definition: object) -> CompiledEventType:
    kind = EventType("orders", **{"partitions": 3, **definition})
    timeline = Timeline("t", "orders", 1, "default", "topic", "2024-05-01T12:00:00Z")
    return CompiledEventType.of(CatalogEntry("id", kind, (timeline,)), limit)


def prepare(made: CompiledEventType, events: object) -> Prepared | PublishReport:
    return preparation.prepare(made, to_items(events, 1_000), NOW_MS, "flow")


def stored(prepared: Prepared | PublishReport) -> list[bytes]:
    """The values in the order in which they were sent."""
    assert isinstance(prepared, Prepared), prepared
    values = {}
    for partition, numbers in prepared.members.items():
        values.update(zip(numbers, prepared.batches[partition].values, strict=True))
    return [values[number] for number in range(prepared.count)]


def outcomes(report: Prepared | PublishReport) -> list[tuple[str, str]]:
    assert isinstance(report, PublishReport), report
    assert report.rejected
    assert report.submitted == 0
    return [(item.publishing_status, item.step) for item in report.items]


def business(**more: object) -> dict[str, object]:
    return {"metadata": {"eid": EID, "occurred_at": "2024-05-01T12:00:00Z"}, **more}


def test_a_publish_of_nothing_is_prepared():
    """An empty publish is valid."""
    assert prepare(compiled(), b"[]").count == 0


# -- items that break a rule


BROKEN = {
    "lone surrogate, escaped": b'{"a":"\\ud800"}',
    "too deep": b'{"a":' + DEEP + b"}",
    "only deep": DEEP,
    "trailing garbage": b'{"a":1} x',
    "two in one": b'{"a":1}{"b":1}',
    "no JSON": b"nope",
    "not a number": b'{"a":NaN}',
    "leading zero": b'{"a":01}',
    "control character": b'{"a":"\x01"}',
    "number": b"5",
    "string": b'"a"',
    "null": b"null",
    "array": b"[1]",
}


NOT_UTF8 = {
    "lone surrogate, raw": b'{"a":"\xed\xa0\x80"}',
    "a text": b'{"a":"\xff"}',
    "a key": b'{"\xff":1}',
}


@pytest.mark.parametrize("broken", NOT_UTF8.values(), ids=NOT_UTF8.keys())
def test_an_array_that_is_not_utf8_is_malformed(broken):
    """The array as a whole cannot be parsed; as one of several items, only that item fails."""
    with pytest.raises(Malformed, match="UTF-8"):
        prepare(compiled(), b'[{"ok":1},' + broken + b"]")
    assert outcomes(prepare(compiled(), [b'{"ok":1}', broken])) == [("aborted", "none"), ("failed", "validating")]


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("whole", [True, False], ids=["array", "items"])
def test_a_broken_item_fails_alone(broken, whole):
    """The item is `failed` at validating with a reason, the others are `aborted`, and nothing is written."""
    items = [b'{"ok":"[,]{\\""}', broken, b'{"ok":[{"x":2}]}']
    report = prepare(compiled(), b"[" + b" , ".join(items) + b"]" if whole else items)
    assert outcomes(report) == [("aborted", "none"), ("failed", "validating"), ("aborted", "none")]
    assert report.items[1].detail


def test_several_broken_items_of_different_kinds_fail_together():
    """All broken items are `failed`, not only the first one."""
    report = prepare(compiled(), b"[" + b",".join([b'{"a":1}', *BROKEN.values()]) + b"]")
    assert outcomes(report)[0][0] == "aborted"
    assert {status for status, _ in outcomes(report)[1:]} == {"failed"}


def test_a_lone_surrogate_in_a_text_fails_as_an_item():
    """The item fails in an array that is a Python string, and as a single Python string."""
    for events in ('[{"a":1},{"a":"\ud800"}]', ['{"a":1}', '{"a":"\ud800"}']):
        assert outcomes(prepare(compiled(), events)) == [("aborted", "none"), ("failed", "validating")]


@pytest.mark.parametrize(
    "item",
    [
        b'{"a":1E400}',
        b'{"a":-1E400,"b":1.10}',
        b'{"a":1e-400}',
        b'{"a":123456789012345678901234567890}',
        b'{"a":1,"a":2}',
        b'{"a":"\\ud83c\\udf89"}',
        b"{}",
        b'{"":""}',
        b'{ "a" : [ ] }',
        '{"a":"🎉\u2028"}'.encode(),
    ],
)
@pytest.mark.parametrize("strategy", ["random", "hash"])
def test_odd_but_valid_events_are_stored_unchanged(item, strategy):
    """Numbers of any size, repeated keys and any text are valid."""
    item = item.replace(b"{", b'{"key":"k"' + (b"," if item.strip() != b"{}" else b""), 1)
    made = compiled(
        partition_strategy=strategy, partition_key_fields=("key",), schema=Schema.json({"type": "object"})
    )
    assert stored(prepare(made, [item, b'{"key":"other"}']))[0] == item


def test_a_huge_number_does_not_move_its_neighbours():
    """The partition of a key does not depend on the other events of the publish."""
    made = compiled(partitions=100, partition_strategy="hash", partition_key_fields=("k",))
    alone = prepare(made, [b'{"k":1.10}'])
    together = prepare(made, [b'{"k":1.10}', b'{"k":1.10,"x":1E400}', b'{"k":1E400}'])
    assert stored(together) == [b'{"k":1.10}', b'{"k":1.10,"x":1E400}', b'{"k":1E400}']
    (partition,) = alone.members
    assert set(together.members[partition]) >= {0, 1}


def test_the_schema_is_checked_per_item():
    """The report has the path of the violation, and the eid if there is one."""
    made = compiled(category="business", schema=Schema.json({"properties": {"a": {"type": "string"}}}))
    report = prepare(made, [business(a="x"), business(a=5)])
    assert outcomes(report) == [("aborted", "none"), ("failed", "validating")]
    assert report.items[1].detail.startswith("#/a: ")
    assert [item.eid for item in report.items] == [EID, EID]


def test_business_schemas_do_not_see_metadata():
    """A closed schema does not have to define `metadata`."""
    made = compiled(
        category="business", schema=Schema.json({"properties": {"a": {}}, "additionalProperties": False})
    )
    assert len(stored(prepare(made, [business(a=1)]))) == 1


def test_data_schemas_see_the_data_alone():
    """The schema applies to `data`, and a broken envelope is refused."""
    made = compiled(category="data", schema=Schema.json({"properties": {"a": {"type": "string"}}}))
    envelope = {"data_type": "t", "data_op": "C"}
    assert stored(prepare(made, [business(**envelope, data={"a": "x"})]))
    report = prepare(made, [business(**envelope, data={"a": 5}), business(data={}), business(**envelope)])
    assert [status for status, _ in outcomes(report)] == ["failed"] * 3


@pytest.mark.parametrize("category", ["business", "data"])
def test_missing_metadata_fails_at_validating(category):
    """The step is the same as in Nakadi."""
    assert outcomes(prepare(compiled(category=category), [{"a": 1}])) == [("failed", "validating")]


def test_keys_and_chosen_partitions_fail_at_partitioning():
    """Only the items without a valid key or partition are `failed`."""
    hashed = compiled(partition_strategy="hash", partition_key_fields=("k",))
    assert outcomes(prepare(hashed, [{"k": "x"}, {}])) == [("aborted", "none"), ("failed", "partitioning")]
    chosen = compiled(partition_strategy="user_defined")
    report = prepare(chosen, [{"metadata": {"partition": "2"}}, {"metadata": {"partition": "3"}}, {}])
    assert [status for status, _ in outcomes(report)] == ["aborted", "failed", "failed"]


# -- sizes


def test_the_size_limit_holds_before_enrichment():
    """An event at the limit is accepted; one more byte is refused."""
    fits = b'{"a":"' + b"x" * 92 + b'"}'
    assert len(fits) == 100
    assert stored(prepare(compiled(100), [fits])) == [fits]
    report = prepare(compiled(100), [fits, fits[:-2] + b'x"}'])
    assert outcomes(report) == [("aborted", "none"), ("failed", "validating")]
    assert "101 bytes; at most 100" in report.items[1].detail


def test_the_size_limit_holds_after_enrichment():
    """An event that exceeds the limit with its added metadata fails at enriching."""
    made = compiled(category="business", partitions=1)
    (enriched,) = stored(prepare(made, [business()]))
    exact = compiled(len(enriched), category="business", partitions=1)
    assert stored(prepare(exact, [business()])) == [enriched]
    report = prepare(exact, [business(), business(a=1)])
    assert outcomes(report) == [("aborted", "none"), ("failed", "enriching")]


# -- placing


def test_random_spreads_one_publish_evenly():
    """Every partition gets the same number of events."""
    prepared = prepare(compiled(partitions=3), [{"n": n} for n in range(9)])
    assert sorted(len(batch) for batch in prepared.batches.values()) == [3, 3, 3]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_events_of_a_key_stay_together_and_in_order(keys):
    """The records of a partition have the order of the publish and their keys."""
    made = compiled(partition_strategy="hash", partition_key_fields=("k",))
    prepared = prepare(made, [{"k": f"k{key}", "n": number} for number, key in enumerate(keys)])
    homes: dict[str, int] = {}
    for partition, batch in prepared.batches.items():
        events = [json.loads(value) for value in batch.values]
        assert [event["n"] for event in events] == sorted(event["n"] for event in events)
        assert [event["n"] for event in events] == list(prepared.members[partition])
        assert list(batch.keys) == [event["k"].encode() for event in events]
        assert batch.timestamp_ms == NOW_MS
        for event in events:
            assert homes.setdefault(event["k"], partition) == partition
    assert sum(map(len, prepared.batches.values())) == len(keys)


def test_a_chosen_partition_is_kept_and_named_in_the_metadata():
    """A business event keeps its partition with `user_defined`."""
    made = compiled(category="business", partition_strategy="user_defined")
    event = business()
    event["metadata"]["partition"] = "2"
    prepared = prepare(made, [event])
    assert list(prepared.batches) == [2]
    assert json.loads(prepared.batches[2].values[0])["metadata"]["partition"] == "2"


# -- reports


def two_partitions() -> Prepared:
    made = compiled(category="business", partition_strategy="user_defined")
    events = []
    for partition in ("0", "1", "0"):
        event = business()
        event["metadata"]["partition"] = partition
        events.append(event)
    return prepare(made, events)


def test_a_complete_append_is_reported_without_items():
    """The report has only the count."""
    report = preparation.report(two_partitions(), {0: Placed([0, 1]), 1: Placed([0])})
    assert report == PublishReport(3)
    assert (report.ok, report.submitted, report.rejected) == (True, 3, False)


def test_a_partial_append_says_what_became_of_each():
    """The results are in the order of the publish, with eids. An unknown outcome has its own detail."""
    placed = {
        0: Placed([5, UNKNOWN], Unavailable("slow")),
        1: Placed([FAILED], Unavailable("the partition is away")),
    }
    report = preparation.report(two_partitions(), placed)
    assert report.items == (
        ItemResult("submitted", "publishing", "", EID),
        ItemResult("failed", "publishing", "the partition is away", EID),
        ItemResult("failed", "publishing", OUTCOME_UNKNOWN, EID),
    )
    assert (report.ok, report.submitted, report.rejected) == (False, 1, False)


def test_an_unknown_outcome_is_one_for_every_item():
    """Every item of the report has an unknown outcome."""
    report = preparation.unknown_report(two_partitions().items)
    assert [item.detail for item in report.items] == [OUTCOME_UNKNOWN] * 3
    assert report.submitted == 0
