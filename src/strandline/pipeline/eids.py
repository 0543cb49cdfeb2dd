"""Deterministic `eid`s: a row gets the same `eid` in every attempt of its task. Pure.

An `eid` is derived from the id of the write, the number of the task, the bytes of the event, and the number of
equal events before it. It does not depend on the order of rows, which may differ when a task is retried.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class Stamps:
    """Adds the eids of one task and, if `occurred_at` is given, also the `occurred_at` of events without one."""

    def __init__(self, write_id: str, task: int, occurred_at: str | None = None) -> None:
        self._seed = blake2b(f"{write_id}\0{task}".encode(), digest_size=16)
        self._times: dict[bytes, int] = {}
        self._occurred_at = None if occurred_at is None else msgspec.Raw(_encode(occurred_at))

    def stamp(self, items: Iterable[bytes]) -> list[bytes]:
        """The events with completed metadata. What is not a JSON object is unchanged; publishing refuses it."""
        return [self._stamped(item) for item in items]

    def _stamped(self, item: bytes) -> bytes:
        eid = self._eid(item)
        try:
            event = _object.decode(item)
            metadata = _object.decode(event.get("metadata", b"{}"))
        except (msgspec.MsgspecError, UnicodeError):
            return item
        missing = {"eid": msgspec.Raw(_encode(eid)), "occurred_at": self._occurred_at}
        added = {name: raw for name, raw in missing.items() if raw is not None and name not in metadata}
        if not added:
            return item
        event["metadata"] = msgspec.Raw(_encode({**metadata, **added}))
        return _encode(event)

    def _eid(self, item: bytes) -> str:
        digest = self._seed.copy()
        digest.update(item)
        content = digest.digest()
        times = self._times[content] = self._times.get(content, -1) + 1
        if times:
            digest.update(b"\0%d" % times)
        found = digest.hexdigest()
        # UUID version 8: the content is defined by the application.
        return f"{found[:8]}-{found[8:12]}-8{found[13:16]}-a{found[17:20]}-{found[20:]}"
