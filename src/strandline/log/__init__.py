"""The log room: event types in partitions, over timelines of storages."""

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
