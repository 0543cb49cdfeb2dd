"""What tests of the journal room share: replication without Spark, and journals that are written in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.errors import Malformed
from strandline.journal import actions
from strandline.journal.action_log import ActionLog, NewAction
from strandline.journal.model import DeadLetter, LoggedAction
from strandline.log.cursors import Position
from strandline.platform import Platform

#: Opens another node of the same place, with settings of the journal.
Opener = Callable[..., Platform]
_AT_ONCE = 2_000


def replicate(node: Platform, topic: str, until: dict[int, Position] | None = None) -> None:
    """Replicate all partitions up to the given positions, or up to their ends."""
    found, store = node.journals.topic(topic), node.journals.store()
    pointers = store.pointers(found.id)
    for partition in range(found.partitions):
        end = node.log.raw.end(topic, partition) if until is None else until.get(partition)
        after = pointers.get(partition)
        if end is None or end <= (after or Position(0, -1)) or end.offset < 0:
            continue
        taken: list[LoggedAction] = []
        dead: list[DeadLetter] = []
        for batch in node.log.raw.read(topic, partition, after, end):
            for record in batch.records.to_pylist():
                cursor = Position(batch.timeline, record.pop("offset"))
                try:
                    logged = actions.from_record(cursor, record.pop("timestamp"), **record)
                except Malformed as error:
                    place = (partition, cursor, 0, error.detail)
                    dead.append(DeadLetter(*place, record["key"], record["value"]))
                else:
                    taken += [] if logged is None else [logged]
        store.apply(found.id, partition, after, end, taken, dead, adopted=found.adopted)


def write_all(node: Platform, topic: str, written: Iterable[NewAction]) -> None:
    """Write many actions, in order for each journal, with few calls."""
    log: ActionLog = node.journals.action_log
    found = node.journals.topic(topic)
    parts: dict[int, list[NewAction]] = {}
    for one in written:
        parts.setdefault(log.partition(found, one[0]), []).append(one)
    for partition, own in parts.items():
        for start in range(0, len(own), _AT_ONCE):
            log.write(found, partition, own[start : start + _AT_ONCE])


def texts(events) -> list[tuple[int, bytes | None]]:
    """The seqNr and the payload of each event."""
    return [(event.seq_nr, None if event.payload is None else event.payload.data) for event in events]
