"""The storage of records: the port and one module per engine."""

from strandline.log.storage.port import (
    FAILED,
    UNKNOWN,
    AdoptingStorage,
    Bounds,
    ExistingTopic,
    Fence,
    FencingStorage,
    Placed,
    SealableStorage,
    Storage,
)

__all__ = [
    "FAILED",
    "UNKNOWN",
    "AdoptingStorage",
    "Bounds",
    "ExistingTopic",
    "Fence",
    "FencingStorage",
    "Placed",
    "SealableStorage",
    "Storage",
]
