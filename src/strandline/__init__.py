"""Strandline: a timeline platform over one durable, partitioned event log.

`strandline.open(path)` gives the rooms in this process, `strandline.connect(url)` the same over HTTP.
"""

from strandline.errors import StrandlineError
from strandline.log import EventType, Schema
from strandline.platform import open  # noqa: A004 - `strandline.open` is the name users read

__version__ = "0.1.0"

__all__ = ["EventType", "Schema", "StrandlineError", "__version__", "open"]
