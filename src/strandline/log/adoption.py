"""Topics of other applications that journals share: which ones can be adopted, and whether they still can.

The journals of both sides must find the actions of an entity in one partition, and all of them. So a topic must
not be compacted, must place records by Kafka's hash of their keys, and must keep its number of partitions.
"""

from __future__ import annotations

import re
import threading

from strandline.clock import Clock
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError
from strandline.log import partitioning
from strandline.log.model import CatalogEntry, StorageInfo
from strandline.log.open_storages import Storages
from strandline.log.storage import AdoptingStorage

_is_name = re.compile(r"[a-zA-Z0-9._-]{1,249}").fullmatch
_SAMPLED_PARTITIONS = 32
_SAMPLED_RECORDS = 200
_SAMPLED_BYTES = 1 << 20
# How long a topic counts as unchanged after it was checked.
_CHECK_MS = 1000


class Adoption:
    def __init__(self, storages: Storages, clock: Clock) -> None:
        self._storages = storages
        self._clock = clock
        self._lock = threading.Lock()
        # By topic, when it was checked and what was found.
        self._checked: dict[str, tuple[int, StrandlineError | None]] = {}

    def check_new(self, storage: StorageInfo, topic: str, partitions: int | None) -> int:
        """The number of partitions of a topic that may be adopted; Invalid or Conflict says why it must not be."""
        found = self._storages.get(storage.id)
        if not isinstance(found, AdoptingStorage):
            raise Invalid(
                f"kafka_topic needs a storage of type kafka; {storage.id!r} is of type {storage.storage_type}"
            )
        if not _is_name(topic):
            raise Invalid(f"{topic!r:.100} is not the name of a Kafka topic")
        try:
            count = _checked(found, topic, partitions)
        except NotFound:
            raise Invalid(f"storage {storage.id!r} has no Kafka topic {topic!r}; create it first") from None
        _refuse_other_hash(found, topic, count)
        return count

    def check_again(self, entry: CatalogEntry) -> None:
        """Conflict if an adopted topic has changed. Asks the storage at most once a second."""
        active = entry.active
        now_ms = self._clock.steady_ms()
        with self._lock:
            checked_ms, error = self._checked.get(active.topic, (now_ms - _CHECK_MS, None))
            due = now_ms - checked_ms >= _CHECK_MS
            if due:  # the other threads rely on the last check meanwhile
                self._checked[active.topic] = now_ms, error
        if due:
            error = self._error(entry)
            self._checked[active.topic] = now_ms, error
        if error is not None:
            raise error

    def _error(self, entry: CatalogEntry) -> StrandlineError | None:
        active = entry.active
        storage = self._storages.get(active.storage_id)
        try:
            if isinstance(storage, AdoptingStorage):
                _checked(storage, active.topic, entry.event_type.partition_count)
        except (Conflict, NotFound) as error:
            return error
        return None


def _checked(storage: AdoptingStorage, topic: str, partitions: int | None) -> int:
    found = storage.existing(topic)
    if found.compacted:
        raise Conflict(
            f"Kafka topic {topic!r} is compacted, so that it loses actions; set its cleanup.policy to delete"
        )
    if partitions not in {None, found.partitions}:
        raise Conflict(
            f"Kafka topic {topic!r} has {found.partitions} partitions, not {partitions}; with another number the "
            "actions of one journal would be in two of them"
        )
    return found.partitions


def _refuse_other_hash(storage: AdoptingStorage, topic: str, count: int) -> None:
    """Conflict if a record among the oldest or newest ones is not where Kafka's own clients put its key."""
    for partition, bounds in enumerate(storage.bounds(topic)[:_SAMPLED_PARTITIONS]):
        for first in {bounds.first, max(bounds.first, bounds.last + 1 - _SAMPLED_RECORDS)}:
            found = storage.read(topic, partition, first, max_records=_SAMPLED_RECORDS, max_bytes=_SAMPLED_BYTES)
            keys = [key for key in found["key"].to_pylist() if key is not None]
            if keys and {*partitioning.hash_partitions(keys, count)} != {partition}:
                raise Conflict(
                    f"Kafka topic {topic!r} has records in partition {partition} that another partitioner put "
                    "there; journals need Kafka's default one (murmur2 of the key)"
                )
