"""The log of actions, as readers and writers of this node use it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter

import msgspec

from strandline.clock import Clock
from strandline.errors import OutcomeUnknown, StrandlineError, TooLarge
from strandline.journal import rules
from strandline.journal.actions import HEADER, encode
from strandline.journal.model import Action, LoggedAction
from strandline.journal.recent import RecentAppends
from strandline.journal.settings import JournalSettings
from strandline.journal.tail import Header, Tail, header_of
from strandline.log import partitioning
from strandline.log.combining import Combiner
from strandline.log.cursors import Position
from strandline.log.raw import RawLog, RawTopic, Stored
from strandline.log.records import NewRecords, total_bytes
from strandline.log.settings import LogSettings

#: The id of a journal, an action of it, and the value of an append.
NewAction = tuple[str, Action, bytes | None]

# Writers whose actions are stored together wait for the first one.
_GROUP_ACTIONS = 256
_GROUP_BYTES = 1 << 20
_KNOWN_PLACES = 8192


class _Written(msgspec.Struct, frozen=True):
    """Actions that one caller writes to a partition, and what is stored for them."""

    partition: int
    actions: Sequence[NewAction]

    @property
    def weight(self) -> float:
        values = total_bytes([value for _, _, value in self.actions])
        return max(len(self.actions) / _GROUP_ACTIONS, values / _GROUP_BYTES)


_Line = Combiner[_Written, list[Position]]


class ActionLog:
    def __init__(self, raw: RawLog, settings: JournalSettings, log_settings: LogSettings, clock: Clock) -> None:
        self.raw = raw
        self.recent = RecentAppends()
        self._limit = settings.cached_actions
        self._max_bytes = log_settings.max_event_bytes
        # A write may wait for the one before it.
        self._timeout = 2 * log_settings.publish_deadline_ms / 1000
        self._clock = clock
        self._origin = socket.gethostname()
        self._lock = threading.Lock()
        self._tails: dict[tuple[str, int], Tail] = {}
        # By the id of the topic.
        self._lines: dict[str, _Line] = {}

    def partition(self, topic: RawTopic, entity: str) -> int:
        """Invalid if the id cannot be that of a journal."""
        return _partition(rules.entity(entity), topic.partitions)

    def tail(self, topic: RawTopic, partition: int) -> Tail:
        found = self._tails.get((topic.id, partition))
        if found is None:
            with self._lock:
                place = (topic.id, partition)
                found = self._tails.setdefault(place, Tail(self.raw, topic, partition, self._limit))
        return found

    def write(self, topic: RawTopic, partition: int, actions: Sequence[NewAction]) -> list[Position]:
        """Write actions of one partition, and return their cursors once they are durable.

        OutcomeUnknown if they may be written.
        """
        self._check(actions)
        written = _Written(partition, actions)
        if not self.raw.shares_commits(topic):
            with self.tail(topic, partition).writing():
                [stored] = self._store(topic, [written])
            if isinstance(stored, StrandlineError):
                raise stored
            return stored
        try:
            return self._line(topic).do(written, self._timeout)
        except TimeoutError as error:
            raise OutcomeUnknown(f"the journals of {topic.name!r} were not written in time") from error

    def _check(self, actions: Sequence[NewAction]) -> None:
        for _, _, value in actions:
            if value is not None and len(value) > self._max_bytes:
                raise TooLarge(
                    f"the events take {len(value)} bytes together; at most {self._max_bytes} can be appended at "
                    "once: append fewer or smaller events"
                )

    def _line(self, topic: RawTopic) -> _Line:
        """Stores what callers write at the same time together: threads that wait cost more than their records."""
        found = self._lines.get(topic.id)
        if found is None:
            made = Combiner(partial(self._store, topic), self.raw.threads(topic.name), weight=attrgetter("weight"))
            found = self._lines.setdefault(topic.id, made)
        return found

    def _store(self, topic: RawTopic, group: Sequence[_Written]) -> list[Stored]:
        """The cursors of every member of the group, or its error."""
        now_ms = self._clock.now_ms()
        parts: dict[int, list[NewAction]] = {}
        for written in group:
            parts.setdefault(written.partition, []).extend(written.actions)
        stored = self.raw.append(topic, {p: self._records(now_ms, actions) for p, actions in parts.items()})
        try:
            for partition, actions in parts.items():
                self._note(topic, partition, now_ms, actions, stored[partition])
        except Exception as error:
            raise OutcomeUnknown(f"the journals of {topic.name!r} were written but not read: {error}") from error
        left = {p: iter(one) for p, one in stored.items() if not isinstance(one, StrandlineError)}
        return [
            [*islice(left[one.partition], len(one.actions))] if one.partition in left else stored[one.partition]
            for one in group
        ]

    def _records(self, now_ms: int, actions: Sequence[NewAction]) -> NewRecords:
        return NewRecords(
            now_ms,
            [value for _, _, value in actions],
            [entity.encode() for entity, _, _ in actions],
            [[(HEADER, encode(action, self._origin))] for _, action, _ in actions],
        )

    def _note(
        self, topic: RawTopic, partition: int, now_ms: int, actions: Sequence[NewAction], stored: Stored
    ) -> None:
        """Let readers of this node know what was stored without reading it."""
        if isinstance(stored, StrandlineError):
            return
        headers: list[Header] = []
        for (entity, action, value), cursor in zip(actions, stored, strict=True):
            logged = LoggedAction(entity, cursor, now_ms, action, value, self._origin)
            headers.append((cursor, header_of(logged)))
            if value is not None:
                self.recent.put(topic.id, partition, logged)
        self.tail(topic, partition).wrote(headers)

    def forget(self, topics: set[str]) -> None:
        """Drop what is known of topics other than these ids."""
        with self._lock:
            for place in [place for place in self._tails if place[0] not in topics]:
                del self._tails[place]
            for topic in self._lines.keys() - topics:
                del self._lines[topic]

    def close(self) -> None:
        """Finish the writes that were begun."""
        for line in [*self._lines.values()]:
            line.finish()


@lru_cache(_KNOWN_PLACES)
def _partition(entity: str, partitions: int) -> int:
    """Kept for the journals in use: the hash of an id takes longer than the encoding of an action."""
    return partitioning.hash_partitions([entity.encode()], partitions)[0]
