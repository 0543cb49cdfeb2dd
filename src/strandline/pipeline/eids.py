"""Events with an `eid` that the same row gets again, however often its task is tried. Pure.

It follows from the write, the task's number, the event's own bytes, and how many equal ones the task had before:
so it does not depend on the order of rows, which may be another one when a task is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class Stamps:
    """The eids of one task; `occurred_at` is added, too, where it is missing, if it is given."""

    def __init__(self, write_id: str, task: int, occurred_at: str | None = None) -> None:
        self._seed = blake2b(f"{write_id}\0{task}".encode(), digest_size=16)
        self._times: dict[bytes, int] = {}
        self._occurred_at = None if occurred_at is None else msgspec.Raw(_encode(occurred_at))

    def stamp(self, items: Iterable[bytes]) -> list[bytes]:
        """The same events, with metadata completed; what is no object stays as it is, for others to refuse."""
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
        # Version 8: a UUID made by a rule of one's own.
        return f"{found[:8]}-{found[8:12]}-8{found[13:16]}-a{found[17:20]}-{found[20:]}"
