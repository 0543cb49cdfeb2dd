"""The values that the catalog stores as JSON text, and the entries that its rows make up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from strandline.log.model import CatalogEntry, EventType, StorageInfo, Switch, Timeline
from strandline.log.switching import State

_T = TypeVar("_T")


def text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def value(definition: str, kind: type[_T]) -> _T:
    return msgspec.json.decode(definition, type=kind)


def switch(definition: str, state: str) -> Switch:
    return msgspec.structs.replace(value(definition, Switch), state=State(state))


def storage(definition: str, default: object) -> StorageInfo:
    return msgspec.structs.replace(value(definition, StorageInfo), default=bool(default))


def entries(rows: Iterable[tuple[Any, ...]]) -> list[CatalogEntry]:
    """From one row per timeline, oldest first: id, definition, timeline, newest switch and its state."""
    found: dict[str, CatalogEntry] = {}
    for entry_id, definition, timeline, switched, state in rows:
        newest = switch(switched, state) if switched else None
        entry = found.get(entry_id) or CatalogEntry(entry_id, value(definition, EventType), (), newest)
        timelines = (*entry.timelines, value(timeline, Timeline))
        found[entry_id] = msgspec.structs.replace(entry, timelines=timelines)
    return list(found.values())
