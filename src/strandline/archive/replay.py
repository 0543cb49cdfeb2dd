"""Archived hours, published back into an event type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from strandline.archive import flags, parquet
from strandline.archive.files import Files
from strandline.archive.flags import ListedFile
from strandline.archive.layout import Layout
from strandline.clock import to_rfc3339
from strandline.errors import Conflict

#: Publishes JSON texts of events, all or an error.
Publish = Callable[[Sequence[bytes]], None]

_EVENTS = 5_000
_BYTES = 8 << 20
# What the platform sets when it receives an event, and refuses to be told.
_OF_RECEPTION = frozenset({"received_at", "version", "published_by", "event_type"})
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Replayed(msgspec.Struct, frozen=True):
    """How many events of an hour were published, at which revision of it."""

    hour: str
    revision: int
    events: int


def replay(files: Files, layout: Layout, hours_ms: Iterable[int], publish: Publish) -> Iterator[Replayed]:
    """Publish the events of ready hours, hour by hour; within a partition in their order.

    The events are those that the hour's flag lists. Conflict, before anything of it is published, if an hour is
    not ready. After an error some events of the hour may be published: events keep their `eid`, so that whoever
    reads them can tell when they come again.
    """
    for hour_ms in hours_ms:
        flag = flags.read(files, layout.flags(hour_ms)[1])
        if flag is None:
            raise Conflict(f"{to_rfc3339(hour_ms)} of {layout.event_type!r} is not ready")
        events = 0
        for batch in _batches(files, layout.data(hour_ms), flag.files):
            publish(batch)
            events += len(batch)
        yield Replayed(flag.hour, flag.revision, events)


def _batches(files: Files, folder: str, listed: Iterable[ListedFile]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for value in _values(files, folder, listed):
        if batch and (len(batch) >= _EVENTS or size + len(value) > _BYTES):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(value)
    if batch:
        yield batch


def _values(files: Files, folder: str, listed: Iterable[ListedFile]) -> Iterator[bytes]:
    """Late files are in their place among the others: by partition, then by cursor."""
    for file in sorted(listed, key=lambda file: (int(file.partition), file.first_cursor)):
        for rows in parquet.read(files, f"{folder}/{file.name}"):
            # A record without a value is no event.
            yield from (as_sent(text.encode()) for text in rows["value"].to_pylist() if text is not None)


def as_sent(value: bytes) -> bytes:
    """An event as its publisher sent it: without what was added to its metadata on reception."""
    fields = _fields.decode(value)
    if "metadata" not in fields:
        return value
    try:
        metadata = _fields.decode(fields["metadata"])
    except msgspec.ValidationError:
        return value
    if _OF_RECEPTION.isdisjoint(metadata):
        return value
    kept = {name: raw for name, raw in metadata.items() if name not in _OF_RECEPTION}
    return msgspec.json.encode({**fields, "metadata": kept})
