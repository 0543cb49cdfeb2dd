"""Values that several threads may decode.

msgspec looks at a type when it is first decoded, and when two threads do that at once the process can crash. So
all of our types are looked at before there are threads that decode them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

_lock = threading.Lock()
_prepared: set[type] = set()


def prepare() -> None:
    """Make every value type that has been imported ready for any thread."""
    with _lock:
        for kind in {*_kinds(msgspec.Struct)} - _prepared:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)


def _kinds(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("strandline."):
            yield kind
        yield from _kinds(kind)
