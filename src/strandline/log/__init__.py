"""The log room: event types in partitions, over timelines of storages."""

from typing import TYPE_CHECKING

from strandline.lazy import lazy

if TYPE_CHECKING:
    from strandline.log.model import (
        CursorText,
        Distance,
        DistanceQuery,
        EventType,
        ItemResult,
        Options,
        PartitionInfo,
        PublishReport,
        Schema,
        ShiftedCursor,
        StorageInfo,
        Timeline,
    )
    from strandline.log.reading import Batch
    from strandline.log.room import Log

__all__ = [
    "Batch",
    "CursorText",
    "Distance",
    "DistanceQuery",
    "EventType",
    "ItemResult",
    "Log",
    "Options",
    "PartitionInfo",
    "PublishReport",
    "Schema",
    "ShiftedCursor",
    "StorageInfo",
    "Timeline",
]

if not TYPE_CHECKING:
    # Names load on first use: commands that need only the settings do not wait for the import of Arrow.
    __getattr__, __dir__ = lazy(
        __name__,
        dict.fromkeys(__all__, "strandline.log.model")
        | {"Batch": "strandline.log.reading", "Log": "strandline.log.room"},
    )
