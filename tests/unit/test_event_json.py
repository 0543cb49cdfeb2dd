"""From published events to the text of every event, and from a text to its value."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from strandline.errors import Invalid, Malformed, TooLarge
from strandline.log.event_json import decode_event, to_items


@pytest.mark.parametrize(
    "events",
    [
        b'[{"a":1.10}, {"b":2}]',
        '[{"a":1.10}, {"b":2}]',
        bytearray(b'[{"a":1.10},{"b":2}]'),
        memoryview(b'[{"a":1.10},{"b":2}]'),
        [b'{"a":1.10}', '{"b":2}'],
        iter([b'{"a":1.10}', {"b": 2}]),
    ],
)
def test_events_may_come_in_many_forms(events):
    """Events are one JSON array, or any number of single events."""
    assert to_items(events, 10) == [b'{"a":1.10}', b'{"b":2}']


def test_rows_of_a_table_are_events():
    """Tables and record batches are accepted."""
    table = pa.table({"a": [1, None], "b": ["x", "ü"]})
    expected = [b'{"a":1,"b":"x"}', '{"a":null,"b":"ü"}'.encode()]
    assert to_items(table, 10) == expected
    assert to_items(table.to_batches()[0], 10) == expected


def test_items_keep_their_bytes():
    """Spaces, number formats, escapes and repeated keys do not change."""
    raw = [b'{ "a" :1.10 }', b'{"a":1E5,"a":-0}', b'{"a":"\\u00e9\\/"}', b'{"a":123456789012345678901234567890}']
    assert to_items(b"[ " + b" ,\n".join(raw) + b"\t]", 10) == raw


def test_no_events_are_fine():
    """An empty array publishes nothing and is valid."""
    assert to_items(b"[]", 10) == to_items([], 10) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{}",
        b'{"a":1}',
        b"null",
        b"5",
        b"[",
        b'[{"a":1}',
        b'[{"a":1]',
        b'[{"a":1}}',
        b'[{"a":1},]',
        b"[,]",
        b'[{"a":1}] x',
        b'[{"a":1}]]',
        b'["a]',
        b'[{"a":"\\"}]',
        b"\xff",
        b"\xef\xbb\xbf[]",
        "[\ud800",
    ],
)
def test_a_body_that_is_no_array_is_malformed(body):
    """The items of such a body cannot be found."""
    with pytest.raises(Malformed):
        to_items(body, 10)


def test_too_many_events_are_refused():
    """The message has the number of events and the limit."""
    assert len(to_items(b"[1,2,3]", 3)) == 3
    with pytest.raises(TooLarge, match=r"4 events .* at most 3"):
        to_items(b"[1,2,3,4]", 3)


def test_a_python_value_that_is_no_json_is_malformed():
    """Other objects, lone surrogates and cycles are refused."""
    loop: dict[str, object] = {}
    loop["self"] = loop
    for event in ({"a": object()}, {"a": "\ud800"}, loop):
        with pytest.raises(Malformed, match="cannot be written as JSON"):
            to_items([event], 10)


@pytest.mark.parametrize(
    ("item", "value"),
    [
        (b'{"a":1.10}', {"a": 1.1}),
        (b'{"a":1E400}', {"a": Decimal("1E400")}),
        (b'{"a":-1E400,"b":0.5}', {"a": Decimal("-1E400"), "b": 0.5}),
        (b'{"a":123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b"5", 5),
    ],
)
def test_an_item_is_decoded_with_numbers_of_any_size(item, value):
    """A number that does not fit a double becomes a Decimal."""
    assert decode_event(item) == value


@pytest.mark.parametrize("item", [b"", b"nope", b'{"a":01}', b'{"a":"\xff"}', b'{"a":1} x'])
def test_an_item_that_is_not_json_is_invalid(item):
    """The message says that the event is not JSON."""
    with pytest.raises(Invalid, match="the event is not JSON: "):
        decode_event(item)
