"""Strandline: a timeline platform over one durable, partitioned event log.

`strandline.open(path)` gives the rooms in this process, `strandline.connect(url)` the same over HTTP.
"""

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.client import connect
    from strandline.log import EventType, Schema
    from strandline.platform import open  # noqa: A004 - `strandline.open` is the name users read

__version__ = "0.1.0"

__all__ = ["EventType", "Schema", "StrandlineError", "__version__", "connect", "open"]

# Loaded when first asked for: the command line must not wait for Arrow to print its help.
_HOMES = {
    "EventType": "strandline.log",
    "Schema": "strandline.log",
    "connect": "strandline.client",
    "open": "strandline.platform",
}


# Two threads that load packages which need each other, from different ends, get half of one.
_loading = threading.RLock()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _loading:
        return getattr(import_module(_HOMES[name]), name)
