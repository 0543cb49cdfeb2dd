"""Headers and values of actions, byte for byte as kafka-journal writes and reads them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Malformed
from strandline.journal import actions, payloads
from strandline.journal.actions import Decoded
from strandline.journal.model import Append, Delete, Mark, NewEvent, Payload, Purge
from strandline.log.cursors import Position

AT = Position(1, 7)

# -- headers


@pytest.mark.parametrize(
    ("action", "origin", "header"),
    [
        (
            Append(1, 5, "binary"),
            None,
            b'{"append":{"range":{"from":1,"to":5},"payloadType":"binary","metadata":{}}}',
        ),
        (
            Append(1, 5),
            "origin",
            b'{"append":{"range":{"from":1,"to":5},"origin":"origin","payloadType":"json","metadata":{}}}',
        ),
        (Mark("id"), "origin", b'{"mark":{"id":"id","origin":"origin"}}'),
        (Delete(3), "origin", b'{"delete":{"to":3,"origin":"origin"}}'),
        (Delete(3), None, b'{"delete":{"to":3}}'),
        (Purge(), "origin", b'{"purge":{"origin":"origin"}}'),
        (Purge(), None, b'{"purge":{}}'),
    ],
)
def test_headers_are_those_of_kafka_journal(action, origin, header):
    assert actions.encode(action, origin) == header
    assert actions.decode(header) == Decoded(action, origin)


@pytest.mark.parametrize(
    "action",
    [
        Append(1, 2, id="x", expected=0, since=AT, expire_after_ms=5),
        Append(1, 2, expected=3),
        Delete(3, since=AT),
        Purge(if_cursor=AT),
    ],
)
def test_what_kafka_journal_does_not_know_is_inside_one_member_of_the_action(action):
    header = actions.encode(action)
    assert header.count(b'"strandline":{') == 1
    assert actions.decode(header) == Decoded(action)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            b'{"append":{"range":{"from":1,"to":5},"origin":"o","version":"1","payloadType":"json","metadata":{}}}',
            Decoded(Append(1, 5), "o", "1"),
        ),
        (b'{"append":{"range":{"from":1,"to":5},"payloadType":"json"}}', Decoded(Append(1, 5))),
        (
            b'{"append":{"range":{"from":1,"to":5},"payloadType":"json","metadata":"x"}}',
            Decoded(Append(1, 5)),
        ),
        (b'{ "delete" : { "to" : 3, "version": "0.0.1" } }', Decoded(Delete(3), None, "0.0.1")),
        (b'{"append":1,"purge":{}}', Decoded(Purge())),
        (b'{"new":{}}', None),
        (b"{}", None),
    ],
)
def test_headers_of_all_versions_are_read(header, expected):
    assert actions.decode(header) == expected


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"append":{}}',
        b'{"append":{"range":{"from":0,"to":5},"payloadType":"json"}}',
        b'{"append":{"range":{"from":5,"to":4},"payloadType":"json"}}',
        b'{"append":{"range":{"from":1,"to":9223372036854775808},"payloadType":"json"}}',
        b'{"append":{"range":{"from":1,"to":1},"payloadType":"text"}}',
        b'{"delete":{"to":"3"}}',
        b'{"delete":{"to":3,"strandline":{"since":"x"}}}',
        b'{"mark":{}}',
        b'{"append":{"range":{"from":1,"to":1},"payloadType":"json","strandline":{"expire_after":9223372036855}}}',
    ],
)
def test_a_malformed_header_is_refused(header):
    with pytest.raises(Malformed):
        actions.decode(header)


HEADER_WITH = b'{"append":{"range":{"from":1,"to":2},"payloadType":"json","metadata":%b}}'


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (b'{"data":{"key":"value"}}', b'{"key":"value"}'),
        (b'{ "data" : [1e400] , "other":1}', b"[1e400]"),
        (b'{"data":null}', None),
        (b"{}", None),
        (b"null", None),
        (b'"data"', None),
        (b"[1]", None),
        (b'{"data":"\xff"}', None),
    ],
)
def test_metadata_in_the_header_are_read_leniently(metadata, data):
    """kafka-journal takes metadata that are missing or no object for empty ones."""
    header = HEADER_WITH % metadata
    assert actions.decode(header) == Decoded(Append(1, 2), metadata=data)
    assert actions.decode(b" " + header) == Decoded(Append(1, 2), metadata=data)


@pytest.mark.parametrize(
    ("in_header", "in_value", "expected"),
    [
        (b'{"data":{"key":"value"}}', b"{}", b'{"key":"value"}'),
        (b'{"data":{"key":"value"}}', b'{"data":null}', b'{"key":"value"}'),
        (b'{"data":{"key":"value"}}', b'{"data":{"other":1}}', b'{"other":1}'),
        (b"{}", b'{"data":{"other":1}}', b'{"other":1}'),
        (b"{}", b"{}", None),
    ],
)
def test_events_have_the_metadata_of_the_header_if_the_value_has_none(in_header, in_value, expected):
    value = b'{"events":[{"seqNr":1,"tags":[]},{"seqNr":2,"tags":[]}],"metadata":%b}' % in_value
    logged = record(value=value, headers=[(actions.HEADER, HEADER_WITH % in_header)])
    assert [row.event.metadata for row in payloads.rows(logged)] == [expected, expected]


# -- values

DAY = b'"metadata":{"expireAfter":"1 day","data":{"key":"value"}}'
GOLDEN_JSON = [
    ([(1, None)], False, b'{"events":[{"seqNr":1,"tags":["0","1"]}],"metadata":{}}'),
    (
        [(1, Payload("text", b' {"k":1} '))],
        False,
        b'{"events":[{"seqNr":1,"tags":["0","1"],"payloadType":"text","payload":" {\\"k\\":1} "}],"metadata":{}}',
    ),
    (
        [(1, Payload("json", b'"payload"'))],
        False,
        b'{"events":[{"seqNr":1,"tags":["0","1"],"payloadType":"json","payload":"payload"}],"metadata":{}}',
    ),
    (
        [(1, None), (2, None)],
        True,
        b'{"events":[{"seqNr":1,"tags":["0","1"]},{"seqNr":2,"tags":["0","1","2"]}],' + DAY + b"}",
    ),
    (
        [(1, Payload("json", b'"1"')), (2, Payload("json", b'"2"'))],
        True,
        b'{"events":[{"seqNr":1,"tags":["0","1"],"payloadType":"json","payload":"1"},'
        b'{"seqNr":2,"tags":["0","1","2"],"payloadType":"json","payload":"2"}],' + DAY + b"}",
    ),
]


def new_events(pairs):
    return [NewEvent(payload, tuple(str(n) for n in range(seq_nr + 1)), seq_nr) for seq_nr, payload in pairs]


def triples(pairs):
    return [(event.seq_nr, event.tags, event.payload) for event in new_events(pairs)]


@pytest.mark.parametrize(("pairs", "metadata", "golden"), GOLDEN_JSON)
def test_json_values_are_those_of_kafka_journal(pairs, metadata, golden):
    data, after = (b'{"key":"value"}', 86_400_000) if metadata else (None, None)
    assert payloads.decode("json", golden) == (triples(pairs), data, after)
    own = golden.replace(b"1 day", b"86400000 milliseconds")  # both are Scala's text of the same duration
    assert payloads.encode(new_events(pairs), data, after) == ("json", own)


def int32(number):
    return number.to_bytes(4, "big")


def golden_event(seq_nr, kind, payload):
    tags = b"".join(int32(1) + str(n).encode() for n in range(seq_nr + 1))
    body = seq_nr.to_bytes(8, "big") + int32(len(tags)) + tags + bytes([kind]) + int32(len(payload)) + payload
    return int32(len(body)) + body


MIXED = [
    (1, None),
    (2, Payload("binary", b"binary")),
    (3, Payload("text", b"text")),
    (4, Payload("json", b'"json"')),
]
GOLDEN_EVENTS = [
    golden_event(1, 0, b""),
    golden_event(2, 1, b"binary"),
    golden_event(3, 3, b"text"),
    golden_event(4, 2, b'"json"'),
]
EXPIRING = b'{"events":[{"seqNr":1,"tags":[]}],"metadata":{"expireAfter":%b}}'
METADATA = b'{"expireAfter":"1 day","data":{"key":"value"}}'


def test_a_binary_event_byte_for_byte():
    """Written out by hand once, so that the helper above cannot share a mistake with the code."""
    value = bytes.fromhex(
        "01 00000001 00000022 00000000000000010000000a 00000001 30 00000001 3101 00000007 7061796c6f61647b7d"
    )
    assert payloads.encode(new_events([(1, Payload("binary", b"payload"))])) == ("binary", value)


def test_binary_values_are_those_of_kafka_journal():
    golden = b"\x01" + int32(4) + b"".join(GOLDEN_EVENTS) + METADATA
    data, after = b'{"key":"value"}', 86_400_000
    assert payloads.decode("binary", golden) == (triples(MIXED), data, after)
    own = golden.replace(b"1 day", b"86400000 milliseconds")
    assert payloads.encode(new_events(MIXED), data, after) == ("binary", own)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_binary_values_of_other_versions_have_no_metadata(version):
    golden = bytes([version]) + int32(4) + b"".join(GOLDEN_EVENTS)
    assert payloads.decode("binary", golden) == (triples(MIXED), None, None)


@pytest.mark.parametrize("metadata", [b"{", b'{"expireAfter":"1e99999999 days"}', b'{"data":"\xff"}'])
def test_a_binary_value_with_broken_metadata_is_read_without_them(metadata):
    golden = b"\x01" + int32(4) + b"".join(GOLDEN_EVENTS) + metadata
    assert payloads.decode("binary", golden) == (triples(MIXED), None, None)


def test_json_values_without_metadata_are_read():
    golden = b'{"events": [{"seqNr": 1, "tags": ["0","1"], "payload": {"a": 1}}]}'
    assert payloads.decode("json", golden) == (triples([(1, Payload("json", b'{"a": 1}'))]), None, None)


@pytest.mark.parametrize("data", [b"1e400", b"123456789012345678901234567890", b'{ "a" : 0.10 }', b"null"])
def test_json_payloads_keep_their_bytes(data):
    for more in ([], [NewEvent(Payload("binary", b""), (), 2)]):
        encoding, value = payloads.encode([NewEvent(Payload("json", data), (), 1), *more])
        assert payloads.decode(encoding, value).events[0] == (1, (), Payload("json", data))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5000", 5000),
        ('"1 day"', 86_400_000),
        ('"2 days"', 172_800_000),
        ('"36 hours"', 129_600_000),
        ('"1 minute"', 60_000),
        ('"1.5 seconds"', 1500),
        ('"5000 milliseconds"', 5000),
        ('"10ms"', 10),
        ('"3000000 nanoseconds"', 3),
        ('"106751 days"', 9_223_286_400_000),
        ("9223372036854", 9_223_372_036_854),
        ("null", None),
    ],
)
def test_durations_are_read_as_scala_reads_them(text, expected):
    assert payloads.decode("json", EXPIRING % text.encode()).expire_after_ms == expected


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("json", b""),
        ("json", b"{}"),
        ("json", b'{"events":[]}'),
        ("json", b'{"events":[{"seqNr":0,"tags":[]}]}'),
        ("json", b'{"events":[{"seqNr":1}]}'),
        ("json", b'{"events":[{"seqNr":1,"tags":[],"payloadType":"text","payload":1}]}'),
        ("json", b'{"events":[{"seqNr":1,"tags":[]}],"metadata":{"expireAfter":"soon"}}'),
        ("json", b'{"events":[{"seqNr":1,"tags":[],"payload":"\xff"}]}'),
        ("json", b'{"events":[{"seqNr":1,"tags":[]}],"metadata":{"data":"\xff"}}'),
        ("json", EXPIRING % b'"106752 days"'),
        ("json", EXPIRING % b'"1e999999999 days"'),
        ("json", EXPIRING % b"9223372036855"),
        ("json", EXPIRING % b"99999999999999999999"),
        ("binary", b""),
        ("binary", b"\x01\x00\x00\x00\x00{}"),
        ("binary", b"\x01\x00\x00\x00\x01"),
        ("binary", b"\x01\x00\x00\x00\x01\xff\xff\xff\xff"),
        ("binary", b"\x01\x7f\xff\xff\xff\x00\x00\x00\x00"),
        ("binary", b"\x01" + int32(1) + golden_event(1, 4, b"") + b"{}"),
        ("binary", b"\x01" + int32(1) + golden_event(1, 3, b"\xff") + b"{}"),
        ("binary", b"\x01" + int32(1) + golden_event(1, 2, b"") + b"{}"),
        ("binary", b"\x01" + int32(1) + golden_event(1, 2, b"{bad") + b"{}"),
        ("binary", b"\x01" + int32(1) + golden_event(1, 2, b'1}\n{"problem":1') + b"{}"),
        ("binary", b"\x01" + int32(1) + golden_event(1, 2, b'"\xff"') + b"{}"),
    ],
)
def test_malformed_values_are_refused(encoding, value):
    with pytest.raises(Malformed):
        payloads.decode(encoding, value)


@given(st.binary(max_size=60))
def test_no_value_makes_the_decoder_fail_otherwise(value):
    for encoding in ("json", "binary"):
        with suppress(Malformed):
            payloads.decode(encoding, b"\x01" + value)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([("json", b"[1]"), ("text", b"\xc3\xa4"), ("binary", b"\x00\xff"), None]),
            st.lists(st.text(max_size=5), max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_values_are_read_as_they_were_written(given_events):
    events = [
        NewEvent(None if payload is None else Payload(*payload), tuple(tags), n)
        for n, (payload, tags) in enumerate(given_events, 1)
    ]
    encoding, value = payloads.encode(events)
    assert payloads.decode(encoding, value).events == [(e.seq_nr, e.tags, e.payload) for e in events]


# -- records


def record(key=b"a", value=b"x", headers=((actions.HEADER, b'{"purge":{}}'),)):
    return actions.from_record(AT, 5, key, value, [{"key": k, "value": v} for k, v in headers])


APPEND = (actions.HEADER, b'{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}')


def test_records_without_key_header_known_action_or_value_are_skipped():
    assert record(key=None) is None
    assert record(headers=()) is None
    assert record(headers=[("other", b"{}")]) is None
    assert record(headers=[(actions.HEADER, b'{"new":{}}')]) is None
    assert record(headers=[APPEND], value=None) is None


def test_a_record_keeps_its_other_headers_and_the_value_of_an_append():
    found = record(headers=[("h", b"1"), APPEND])
    assert (found.entity, found.cursor, found.timestamp_ms, found.value) == ("a", AT, 5, b"x")
    assert found.headers == (("h", b"1"),)
    assert record().value is None


@pytest.mark.parametrize("key", [b"\xff", b"", b"x" * 256])
def test_a_key_that_is_no_id_is_malformed(key):
    with pytest.raises(Malformed):
        record(key=key)


def test_an_id_has_at_most_255_characters():
    assert record(key="é".encode() * 255).entity == "é" * 255
