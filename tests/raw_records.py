"""Appends to one partition of a topic of actions."""

from strandline.errors import StrandlineError
from strandline.log.cursors import Position
from strandline.log.raw import RawLog
from strandline.log.records import NewRecords


def append(raw: RawLog, topic: str, partition: int, records: NewRecords) -> list[Position]:
    """The positions of the records; raises the error of the partition."""
    stored = raw.append(raw.topic(topic), {partition: records})[partition]
    if isinstance(stored, StrandlineError):
        raise stored
    return stored
