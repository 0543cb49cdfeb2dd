"""Prepares msgspec decoders before threads share them.

msgspec inspects a type when it is first decoded, and the process can crash when two threads do that at the same
time. All value types are therefore inspected before any thread decodes them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

_lock = threading.Lock()
_prepared: set[type] = set()


def prepare_types() -> None:
    """Make every value type that has been imported safe to decode in any thread. Idempotent."""
    with _lock:
        for kind in {*_value_types(msgspec.Struct)} - _prepared:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)


def _value_types(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("strandline."):
            yield kind
        yield from _value_types(kind)
