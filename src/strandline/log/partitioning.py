"""Which partition an event goes to: pure functions.

`hash` is Kafka's murmur2 over the UTF-8 key, so that JVM producers put the same key into the same partition.
"""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from strandline.errors import Invalid
from strandline.log.event_json import UNDECODED, decode_event
from strandline.log.model import Category

_SEED = 0x9747B28C
_M = 0x5BD1E995
_32 = 0xFFFFFFFF
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}").fullmatch
# Below this many keys a plain loop is faster than the vectorised one.
_VECTOR_FROM = 16
# With a longer key the plain loop is used: all keys would be padded to its length, which takes too much memory.
_VECTOR_LENGTH = 256


def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2, unsigned."""
    length = len(key)
    hashed = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _32
        hashed = (hashed * _M & _32) ^ ((word ^ word >> 24) * _M & _32)
    if length & 3:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _32
    hashed = (hashed ^ hashed >> 13) * _M & _32
    return hashed ^ hashed >> 15


def murmur2_many(keys: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """`murmur2` of every key, in one vector step per four bytes of the longest key."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    longest = int(lengths.max())
    width = (longest // 4 + 1) * 4
    padded = b"".join([key.ljust(width, b"\0") for key in keys])
    words = np.frombuffer(padded, "<u4").reshape(len(keys), width // 4)
    m, shift = np.uint32(_M), np.uint32
    hashed = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    whole = lengths // 4
    for at in range(longest // 4):
        word = words[:, at] * m
        word = (word ^ (word >> shift(24))) * m
        hashed = np.where(at < whole, (hashed * m) ^ word, hashed)
    # Padding is zero bytes, so the word after the last whole one is exactly the tail.
    tail = words[np.arange(len(keys)), whole]
    hashed = np.where(lengths & 3 > 0, (hashed ^ tail) * m, hashed)
    hashed = (hashed ^ (hashed >> shift(13))) * m
    return np.asarray(hashed ^ (hashed >> shift(15)), np.uint32)


def hash_partitions(keys: Sequence[bytes], partitions: int) -> list[int]:
    """`(murmur2 & 0x7fffffff) % partitions` for every key."""
    if len(keys) < _VECTOR_FROM or max(map(len, keys)) > _VECTOR_LENGTH:
        return [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    positive = murmur2_many(keys) & np.uint32(0x7FFFFFFF)
    return [int(p) for p in positive % np.uint32(partitions)]


def key_reader(paths: Sequence[str], category: Category) -> Callable[[bytes], bytes]:
    """A function that returns the key of an event: the fields at `paths`, joined by commas.

    For `data` events paths start below `data`, as in Nakadi. The function raises Invalid if a field is missing.
    """
    above = ["data"] if category == "data" else []
    readers = [_field_reader(path, [*above, *path.split(".")]) for path in paths]
    if len(readers) == 1:
        (read,) = readers
        return lambda item: read(item).encode()
    return lambda item: ",".join([read(item) for read in readers]).encode()


def _field_reader(path: str, names: Sequence[str]) -> Callable[[bytes], str]:
    """A function that returns a field of an event as text."""

    def read(item: bytes) -> str:
        return _field(decode_event(item), path, names)

    kind: Any = str | bool | int | float
    try:
        for name in reversed(names):
            kind = msgspec.defstruct("Above", [("below", kind)], rename={"below": name}, gc=False)
    except ValueError:  # msgspec does not support quotes in names
        return read
    decode, get = msgspec.json.Decoder(kind).decode, operator.attrgetter(".".join(["below"] * len(names)))

    def read_only_it(item: bytes) -> str:
        try:
            return _text(get(decode(item)))
        except UNDECODED:  # the field is missing or unusual
            return read(item)

    return read_only_it


def _field(event: Any, path: str, names: Sequence[str]) -> str:
    value = event
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        raise Invalid(f"the partition key field {path!r} is missing")
    if not isinstance(value, str | bool | int | float | Decimal):
        raise Invalid(f"the partition key field {path!r} must be a string, number or boolean")
    return _text(value)


def _text(value: str | bool | float | Decimal) -> str:
    if isinstance(value, str):
        return value
    return str(value) if not isinstance(value, bool) else "true" if value else "false"


def user_partition(event: Mapping[str, Any], partitions: int) -> int:
    """The partition that the publisher chose in `metadata.partition`."""
    metadata = event.get("metadata")
    chosen = metadata.get("partition") if isinstance(metadata, dict) else None
    if chosen is None:
        raise Invalid("metadata.partition is missing; the event type's partition strategy is user_defined")
    return partition_number(chosen, partitions)


def partition_number(text: Any, partitions: int) -> int:
    """The number of the partition that a text names: `"3"` is 3. Invalid if it does not exist."""
    if isinstance(text, str) and _NUMBER(text) and int(text) < partitions:
        return int(text)
    raise Invalid(f'there is no partition {reprlib.repr(text)}; partitions are "0" to "{partitions - 1}"')
