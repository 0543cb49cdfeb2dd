"""Locks, a version and membership between processes: the port and one module per engine."""

from strandline.coordination.port import Coordination

__all__ = ["Coordination"]
