"""Strandline: a timeline platform over one durable, partitioned event log.

`strandline.open(path)` gives the rooms in this process, `strandline.connect(url)` the same over HTTP.
"""

from typing import TYPE_CHECKING

from strandline.errors import StrandlineError
from strandline.lazy import lazy

if TYPE_CHECKING:
    from strandline.client import connect
    from strandline.feeds import Entry
    from strandline.log import EventType, Schema
    from strandline.platform import open  # noqa: A004 - `strandline.open` is the name users read
    from strandline.schedule import Message, Schedule
else:
    # The command line must not wait for Arrow to print its help.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Entry": "strandline.feeds.model",
            "EventType": "strandline.log.model",
            "Message": "strandline.schedule.message",
            "Schedule": "strandline.schedule.model",
            "Schema": "strandline.log.model",
            "connect": "strandline.client",
            "open": "strandline.platform",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Entry",
    "EventType",
    "Message",
    "Schedule",
    "Schema",
    "StrandlineError",
    "__version__",
    "connect",
    "open",
]
