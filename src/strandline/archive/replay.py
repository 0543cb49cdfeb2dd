"""Publishes archived hours back into an event type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from strandline.archive import flags, parquet
from strandline.archive.files import Files
from strandline.archive.flags import ListedFile
from strandline.archive.layout import Layout
from strandline.archive.model import hour_name
from strandline.errors import Conflict

_EVENTS = 5_000
_BYTES = 8 << 20
# Metadata that the platform sets on reception. Publishing rejects events that contain it.
_OF_RECEPTION = frozenset({"received_at", "version", "published_by", "event_type"})
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Replayed(msgspec.Struct, frozen=True):
    """How many events of an hour were published, and from which revision of the hour."""

    hour: str
    revision: int
    events: int


def replay(
    files: Files, layout: Layout, hours_ms: Iterable[int], publish: Callable[[Sequence[bytes]], object]
) -> Iterator[Replayed]:
    """Publish the events of ready hours as JSON, hour by hour; within a partition in their order.

    The files are those that the hour's flag lists. Conflict if an hour is not ready; nothing of that hour is
    published then. After an error part of an hour may be published. Events keep their `eid`, so that readers can
    recognise duplicates.
    """
    for hour_ms in hours_ms:
        flag = flags.read(files, layout.flags(hour_ms)[1])
        if flag is None:
            raise Conflict(f"hour {hour_name(hour_ms)} of event type {layout.event_type!r} is not ready")
        events = 0
        for batch in _batches(files, layout.data(hour_ms), flag.files):
            publish(batch)
            events += len(batch)
        yield Replayed(hour_name(hour_ms), flag.revision, events)


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
    """By partition, then by cursor, so that late files are among the others in order."""
    for file in sorted(listed, key=lambda file: (int(file.partition), file.first_cursor)):
        for rows in parquet.read(files, f"{folder}/{file.name}"):
            # A record without a value is not an event.
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
