"""Metadata: what is refused, what is added, and that no byte outside it changes."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.log.enrichment import (
    Enricher,
    FoundMetadata,
    MetadataReader,
    check_data_event,
    check_metadata,
    find_metadata,
)
from strandline.log.event_json import UNDECODED

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
NOW = "2024-05-01T12:00:00.000Z"
MINIMAL = f'{{"eid":"{EID}","occurred_at":"{NOW}"}}'
ADDED = {"received_at": NOW, "event_type": "orders", "version": "1.2.3", "flow_id": "flow", "partition": "7"}


def found(raw: bytes) -> FoundMetadata:
    return find_metadata(raw, msgspec.json.decode(raw))


def enrich(text: str, flow_id: str = "flow") -> bytes:
    raw = text.encode()
    (value,) = Enricher("orders", "1.2.3", NOW, flow_id).enrich([raw], [found(raw)], 7)
    return value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{", "}"),
        ('{"price":1.10,"far":1E5,"tiny":1e-7,"zero":-0.0,"big":123456789012345678901234567890,', "}"),
        ('{ \t"a" :\n1 , ', '  ,"b":[ 1 ,2 ] }'),
        (f'{{"copy":{MINIMAL},"nested":{{"metadata":{MINIMAL}}},', f',"list":[{MINIMAL}]}}'),
        (f'{{"text":"\\"metadata\\":{MINIMAL[:0]}",', ',"tail":"\\"metadata\\":{}"}'),
        ('{"escaped":"\\u00e9\\ud83c\\udf89\\/","plain":"é🎉/",', ',"e":""}'),
        ('{"a":1,"a":2,', ',"a":3}'),
    ],
)
@pytest.mark.parametrize("key", ['"metadata":', '"metadata" : ', '"\\u006detadata":'])
def test_bytes_outside_metadata_stay_as_they_came(before, after, key):
    """Numbers, spaces, escapes, repeated keys and other text that looks like metadata keep their bytes."""
    found = enrich(before + key + MINIMAL + after).decode()
    assert found.startswith(before + key)
    assert found.endswith(after)
    middle = found.removeprefix(before + key).removesuffix(after)
    assert json.loads(middle) == {"eid": EID, "occurred_at": NOW, **ADDED}


def test_what_metadata_says_stays_as_it_came():
    """`occurred_at` keeps its digits and offset; other fields keep their bytes."""
    occurred = "2024-05-01T14:00:00.123456789+02:00"
    metadata = f'{{ "occurred_at": "{occurred}", "eid" :"{EID}" , "span_ctx":{{"n":1.10}} \n}}'
    found = enrich(f'{{"metadata":{metadata}}}')
    assert f'"occurred_at": "{occurred}"'.encode() in found
    assert b'"span_ctx":{"n":1.10}' in found
    assert json.loads(found)["metadata"] == {**json.loads(metadata), **ADDED}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ('"event_type":"orders"', {}),
        ('"partition":"3"', {}),
        ('"flow_id":"mine"', {"flow_id": "mine"}),
        ('"flow_id":""', {}),
        ('"flow_id":"\\u00e9\\/"', {"flow_id": "é/"}),
        ('"flow_id":"a\\u0022b","partition":"1","event_type":"orders"', {"flow_id": 'a"b'}),
        ('"partition":"1","partition":"2"', {}),
    ],
)
def test_fields_that_the_publisher_set_come_once(sent, expected):
    """Added fields replace those of the publisher, except for the flow id."""
    found = enrich(f'{{"metadata":{MINIMAL[:-1]},{sent},"span_ctx":{{"n":1E5}}}},"x":1.10}}')
    fields = json.JSONDecoder(object_pairs_hook=list).decode(found.decode())
    metadata = next(value for name, value in fields if name == "metadata")
    assert len({name for name, _ in metadata}) == len(metadata)
    assert {**dict(metadata), "span_ctx": 0} == {
        "eid": EID,
        "occurred_at": NOW,
        "span_ctx": 0,
        **ADDED,
        **expected,
    }
    assert b'"span_ctx":{"n":1E5}' in found
    assert found.endswith(b',"x":1.10}')
    if "flow_id" in expected:
        assert sent.split(",")[0].encode() in found  # with its own bytes


def test_of_two_metadata_the_last_counts():
    """The last field wins, as in other JSON readers. The first one is unchanged."""
    found = enrich(f'{{"metadata":{{"eid":"first"}},"metadata":{MINIMAL}}}')
    assert found.startswith(b'{"metadata":{"eid":"first"},"metadata":{"eid":"105a')
    assert json.loads(found)["metadata"] == {"eid": EID, "occurred_at": NOW, **ADDED}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=8), json_values, max_size=5),
    st.booleans(),
    st.sampled_from([None, 1, " "]),
    st.text(),
)
def test_any_event_keeps_everything_but_its_metadata(event, escaped, indent, flow_id):
    """All other fields are equal for any content and any JSON formatting."""
    event["metadata"] = {"eid": EID, "occurred_at": NOW, "span_ctx": {"x": flow_id}}
    try:
        enriched = enrich(json.dumps(event, ensure_ascii=escaped, indent=indent), flow_id)
    except UnicodeEncodeError:
        return
    stored = json.loads(enriched)
    assert stored.pop("metadata") == {**event.pop("metadata"), **ADDED, "flow_id": flow_id}
    assert stored == event


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eid": None}, "eid"),
        ({"eid": "not-a-uuid"}, "eid"),
        ({"eid": EID + "0"}, "eid"),
        ({"eid": EID + "\n"}, "eid"),
        ({"eid": "x" * 100_000}, "eid"),
        ({"eid": 5}, "eid"),
        ({"occurred_at": None}, "occurred_at"),
        ({"occurred_at": "yesterday"}, "occurred_at"),
        ({"occurred_at": "2024-05-01T12:00:00"}, "occurred_at"),
        ({"occurred_at": "2024-05-01T12:00:75Z"}, "occurred_at"),
        ({"received_at": NOW}, "received_at"),
        ({"version": "1.0.0"}, "version"),
        ({"published_by": "me"}, "published_by"),
        ({"surprise": 1}, "surprise"),
        ({"event_type": "other"}, "event_type"),
        ({"event_type": ""}, "event_type"),
        ({"event_type": 5}, "event_type"),
        ({"flow_id": 5}, "flow_id"),
        ({"partition": 5}, "partition"),
        ({"parent_eids": EID}, "parent_eids"),
        ({"parent_eids": ["x"]}, "parent_eids"),
        ({"parent_eids": [EID, 5]}, "parent_eids"),
        ({"parent_eids": None}, "parent_eids"),
        ({"span_ctx": "x"}, "span_ctx"),
        ({"span_ctx": []}, "span_ctx"),
        ({"eid": EID.replace("-", "")}, "eid"),
        ({"flow_id": None}, "flow_id"),
    ],
)
def test_broken_metadata_is_refused_by_field(change, message):
    """The message names the field and stays short. The typed decoder refuses the metadata, too."""
    metadata = {"eid": EID, "occurred_at": NOW, **change}
    with pytest.raises(Invalid, match=rf"metadata\.{message}") as caught:
        check_metadata({"metadata": metadata}, "orders")
    assert len(caught.value.detail) < 300
    with pytest.raises(UNDECODED):
        MetadataReader("orders").read([msgspec.Raw(msgspec.json.encode(metadata))])


@pytest.mark.parametrize("event", [{}, {"metadata": None}, {"metadata": []}, {"metadata": "x"}])
def test_missing_metadata_is_refused(event):
    """The message lists the required fields."""
    with pytest.raises(Invalid, match="needs at least eid and occurred_at"):
        check_metadata(event, "orders")


def test_complete_metadata_is_accepted():
    """All fields that a publisher may set are accepted together."""
    full = {
        "eid": EID.upper(),
        "occurred_at": "2024-05-01T12:00:00.123456789+02:00",
        "event_type": "orders",
        "flow_id": "f",
        "partition": "0",
        "partition_compaction_key": "k",
        "parent_eids": [EID],
        "span_ctx": {"a": "b"},
    }
    check_metadata({"metadata": full}, "orders")
    text = msgspec.Raw(msgspec.json.encode(full))
    ((fields, found_text),) = MetadataReader("orders").read([text])
    assert {name: getattr(fields, name) for name in full} | {"span_ctx": full["span_ctx"]} == full
    assert found_text is text


@pytest.mark.parametrize(
    "event",
    [
        {"data_op": "C", "data": {}},
        {"data_type": 1, "data_op": "C", "data": {}},
        {"data_type": "t", "data": {}},
        {"data_type": "t", "data_op": "X", "data": {}},
        {"data_type": "t", "data_op": ["C"], "data": {}},
        {"data_type": "t", "data_op": {}, "data": {}},
        {"data_type": "t", "data_op": "C"},
        {"data_type": "t", "data_op": "C", "data": []},
    ],
)
def test_a_data_event_needs_its_envelope(event):
    """A data event needs data_type, data_op and data."""
    with pytest.raises(Invalid, match="data"):
        check_data_event(event)


@pytest.mark.parametrize("act", "CUDS")
def test_a_data_event_with_its_envelope_is_accepted(act):
    """All four operations are valid."""
    check_data_event({"data_type": "t", "data_op": act, "data": {}})
