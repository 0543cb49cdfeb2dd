"""Makes msgspec Structs safe to decode in several threads.

msgspec analyses a type when it is first decoded, and the process can crash when two threads do that at once. So
all Struct types are analysed before other threads start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

_lock = threading.Lock()
_prepared: set[type] = set()


def prepare_for_threads() -> None:
    """Analyse every Struct type that has been imported so far. Calling it again is cheap."""
    with _lock:
        for kind in {*_kinds(msgspec.Struct)} - _prepared:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)


def _kinds(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("strandline."):
            yield kind
        yield from _kinds(kind)
