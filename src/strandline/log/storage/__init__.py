"""Where records live: the port and one module per engine."""

from strandline.log.storage.port import FAILED, UNKNOWN, Bounds, Placed, Storage

__all__ = ["FAILED", "UNKNOWN", "Bounds", "Placed", "Storage"]
