"""The log of actions, as readers and writers of this node use it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from strandline.clock import Clock
from strandline.errors import TooLarge
from strandline.journal import actions, rules
from strandline.journal.model import Action, LoggedAction
from strandline.journal.recent import RecentAppends
from strandline.journal.settings import JournalSettings
from strandline.journal.tail import Tail, header_of
from strandline.log import partitioning
from strandline.log.cursors import Position
from strandline.log.raw import RawLog, RawTopic
from strandline.log.records import NewRecords

#: The id of a journal, an action of it, and the value of an append.
NewAction = tuple[str, Action, bytes | None]


class ActionLog:
    def __init__(self, raw: RawLog, settings: JournalSettings, max_bytes: int, clock: Clock) -> None:
        self.raw = raw
        self.recent = RecentAppends()
        self._limit = settings.cached_actions
        self._max_bytes = max_bytes
        self._clock = clock
        self._origin = socket.gethostname()
        self._lock = threading.Lock()
        self._tails: dict[tuple[str, int], Tail] = {}

    def partition(self, topic: RawTopic, entity: str) -> int:
        return partitioning.hash_partitions([key_of(entity)], topic.partitions)[0]

    def tail(self, topic: RawTopic, partition: int) -> Tail:
        found = self._tails.get((topic.id, partition))
        if found is None:
            with self._lock:
                place = (topic.id, partition)
                found = self._tails.setdefault(place, Tail(self.raw, topic, partition, self._limit))
        return found

    def write(self, topic: RawTopic, partition: int, written: Sequence[NewAction]) -> list[Position]:
        """Write actions of one partition, and return their cursors once they are durable.

        OutcomeUnknown if they may be written.
        """
        for _, _, value in written:
            if value is not None and len(value) > self._max_bytes:
                raise TooLarge(
                    f"the events take {len(value)} bytes together; at most {self._max_bytes} can be appended at "
                    "once: append fewer or smaller events"
                )
        tail = self.tail(topic, partition)
        now_ms = self._clock.now_ms()
        records = NewRecords(
            now_ms,
            [value for _, _, value in written],
            [key_of(entity) for entity, _, _ in written],
            [[(actions.HEADER, actions.encode(action, self._origin))] for _, action, _ in written],
        )
        with tail.writing():
            cursors = self.raw.append(topic.name, partition, records)
            logged = [
                LoggedAction(entity, cursor, now_ms, action, value, self._origin)
                for (entity, action, value), cursor in zip(written, cursors, strict=True)
            ]
            tail.wrote((one.cursor, header_of(one)) for one in logged)
        for one in logged:
            if one.value is not None:
                self.recent.put(topic.id, partition, one)
        return cursors

    def forget(self, topics: set[str]) -> None:
        """Drop what is known of topics other than these ids."""
        with self._lock:
            for place in [place for place in self._tails if place[0] not in topics]:
                del self._tails[place]


def key_of(entity: str) -> bytes:
    """The key of the records of a journal; Invalid if the id cannot be one."""
    return rules.entity(entity).encode()
