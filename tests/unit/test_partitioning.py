"""Which partition an event goes to: Kafka's test vectors, keys and chosen partitions."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.log.event_json import decode_event
from strandline.log.partitioning import (
    hash_partitions,
    key_reader,
    murmur2,
    murmur2_many,
    partition_number,
    user_partition,
)

# From Kafka's UtilsTest.
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def signed(hashed: int) -> int:
    return hashed - (1 << 32) if hashed >> 31 else hashed


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
def test_murmur2_gives_kafkas_numbers(key, expected):
    """A JVM producer puts the same key into the same partition."""
    assert signed(murmur2(key)) == expected
    assert signed(int(murmur2_many([key])[0])) == expected


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60))
def test_the_vectorised_hash_is_the_plain_one(keys):
    """Both hashes are equal for any byte strings, with mixed lengths and zero bytes at the end."""
    assert murmur2_many(keys).tolist() == [murmur2(key) for key in keys]


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(1, 1000))
def test_every_key_has_its_partition_whatever_it_is_sent_with(keys, partitions):
    """The partition of a key does not depend on the batch and is always in range."""
    together = hash_partitions(keys, partitions)
    assert together == [hash_partitions([key], partitions)[0] for key in keys]
    assert all(0 <= partition < partitions for partition in together)


def test_partitions_are_kafkas():
    """The partition is `toPositive(murmur2(key)) % partitions`."""
    for key, hashed in KAFKA.items():
        for partitions in (1, 3, 8, 1000):
            assert hash_partitions([key], partitions) == [(hashed & 0x7FFFFFFF) % partitions]


def test_one_long_key_does_not_cost_memory_for_all():
    """Short keys are not padded to the length of the longest."""
    keys = [b"x" * 900_000] + [b"%d" % number for number in range(2_000)]
    tracemalloc.start()
    found = hash_partitions(keys, 8)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000
    assert found[1:3] == hash_partitions([b"0", b"1"], 8)


@pytest.mark.parametrize(
    ("paths", "category", "event", "key"),
    [
        (["a"], "undefined", '{"a":"x"}', "x"),
        (["a"], "business", '{"a":"ü🎉"}', "ü🎉"),
        (["a"], "undefined", '{"a":"\\u00fc","b":1}', "ü"),
        (["a", "b.c"], "undefined", '{"a":"x","b":{"d":1,"c":"y"}}', "x,y"),
        (["a"], "data", '{"data":{"a":"x"},"a":"not this"}', "x"),
        (["a"], "undefined", '{"a":5}', "5"),
        (["a"], "undefined", '{"a":1' + "0" * 30 + "}", "1" + "0" * 30),
        (["a"], "undefined", '{"a":1.50}', "1.5"),
        (["a"], "undefined", '{"a":1E400}', "1E+400"),
        (["a"], "undefined", '{"a":1.50,"b":1E400}', "1.5"),
        (["a"], "undefined", '{"a":true}', "true"),
        (["a"], "undefined", '{"a":false}', "false"),
        (["a"], "undefined", '{"a":""}', ""),
        (["a"], "undefined", '{"a":{},"a":"last"}', "last"),
        (["a.b"], "undefined", '{"a":5,"a":{"b":1,"b":2}}', "2"),
        (['a"b', "\\"], "undefined", '{"a\\"b":1,"\\\\":2}', "1,2"),
        ([""], "undefined", '{"":1}', "1"),
    ],
)
def test_keys_are_the_named_fields(paths, category, event, key):
    """The values are joined by commas. In `data` events they are in `data`. The last repeated field counts."""
    assert key_reader(paths, category)(event.encode()).decode() == key


@pytest.mark.parametrize(
    "event",
    [
        "{}",
        '{"a":null}',
        '{"a":{}}',
        '{"a":{"b":null}}',
        '{"a":{"b":{}}}',
        '{"a":{"b":[1]}}',
        '{"a":{"b":1},"a":{}}',
        '{"a":"b"}',
        '{"a":[0]}',
    ],
)
def test_a_key_field_that_is_not_there_is_named(event):
    """A key field that is missing, null or not a plain value is Invalid."""
    with pytest.raises(Invalid, match=r"'a\.b'"):
        key_reader(["a.b"], "undefined")(event.encode())


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    )
)
def test_a_key_is_the_same_as_in_the_whole_event(event):
    """A decoder that skips all other fields finds the same value as a full decoder."""
    item = msgspec.json.encode(event)
    value = decode_event(item).get("a")
    if value is None:
        with pytest.raises(Invalid):
            key_reader(["a"], "undefined")(item)
    else:
        text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
        assert key_reader(["a"], "undefined")(item).decode() == text


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("1", 1), ("11", 11)])
def test_partitions_have_plain_numbers(text, number):
    """A partition is a decimal number as text."""
    assert partition_number(text, 12) == number
    assert user_partition({"metadata": {"partition": text}}, 12) == number


@pytest.mark.parametrize(
    "text", ["12", "-1", "+1", "01", "1.0", " 1", "1 ", "", "one", "\u0661", "9" * 5000, 1, 1.0, True, ["1"], {}]
)
def test_what_is_no_partition_is_refused(text):
    """The message names the valid range and does not repeat long texts."""
    with pytest.raises(Invalid, match=r'"0" to "11"') as caught:
        partition_number(text, 12)
    assert len(caught.value.detail) < 200


@pytest.mark.parametrize("event", [{}, {"metadata": None}, {"metadata": []}, {"metadata": {}}])
def test_a_chosen_partition_must_be_there(event):
    """`user_defined` requires `metadata.partition`."""
    with pytest.raises(Invalid, match=r"metadata\.partition is missing"):
        user_partition(event, 12)
