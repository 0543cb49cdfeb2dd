"""Feeds in Redis or Valkey, one server or a Cluster.

A feed is a list of records in order of arrival: an append is one RPUSHX, and a read is one LRANGE of the end of
the list (`redis_layout.py`). Whenever a list has grown by the slack, a script writes a checkpoint and trims it. If
the script cannot, because records are out of order, the list is compacted and rewritten (`redis_lists.py`).
Tombstones and the drop are beside the list under the same hash tag. Feeds that nobody reads expire by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from strandline.clock import Clock
from strandline.engine.redis import Redis
from strandline.engine.redis_commands import Command, command, pack
from strandline.errors import StrandlineError, Unavailable
from strandline.feeds.fold import FeedState, fold, since, visible
from strandline.feeds.model import (
    Applied,
    DropFeed,
    Entry,
    FeedAnswer,
    FeedLimits,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
    feeds_of,
)
from strandline.feeds.records import decode
from strandline.feeds.storage.port import FeedStore
from strandline.feeds.storage.redis_layout import decode_head, list_key, newest, window_size
from strandline.feeds.storage.redis_lists import SCRIPTS, FeedLists, Grown, Pushed, load_script
from strandline.log.cursors import Position

# The records beside a list are compacted whenever this many tombstones were added.
_BESIDE_SLACK = 100
# The remaining life of a key that does not exist.
_NO_FEED = -2
_POSITIONS = b":strandline:positions:%b"
_SAVE = load_script("save")


class _End(NamedTuple):
    """The answers to `_end_of`."""

    head: Any
    records: Any
    length: Any
    life: Any
    head_again: Any


def _end_of(key: bytes, size: int) -> list[Command]:
    """Reads the end of a list. The list was not rewritten in between if both heads are equal."""
    head = command(b"LINDEX", key, 0)
    end = command(b"LRANGE", key, -size, -1)
    return [head, end, command(b"LLEN", key), command(b"PTTL", key), head]


class RedisFeedStore(FeedStore):
    """A write is acknowledged when `replicas` replicas of its master have received it."""

    def __init__(
        self, url: str, limits: FeedLimits, clock: Clock, *, replicas: int = 0, wait_ms: int = 1_000
    ) -> None:
        self._limits = limits
        self._step = max(1, limits.slack)
        self._redis = Redis(url, replicas=replicas, wait_ms=wait_ms, scripts=(*SCRIPTS, _SAVE))
        self._lists = FeedLists(self._redis, limits, clock)

    # -- writes

    def apply(self, operations: Sequence[Operation]) -> list[Applied]:
        outcomes: list[Applied] = []
        for group in _grouped(operations):
            if isinstance(group[0], SetFeed | DropFeed):
                outcomes += self._replace(group)
            else:
                outcomes += self._push(group)
        return outcomes

    def _replace(self, operations: Sequence[Any]) -> Iterator[Applied]:
        answers = self._lists.replace(operations)
        for operation, answer in zip(operations, answers, strict=True):
            if isinstance(answer, StrandlineError):
                yield Applied(0, {operation.feed: answer})
            else:
                yield Applied(int(answer))

    def _push(self, operations: Sequence[Pushed]) -> list[Applied]:
        """All commands of the operations in one pipeline; then the lists that have grown are tidied."""
        commands = [self._lists.commands(operation) for operation in operations]
        answers = iter(self._redis.write([one for some in commands for one in some]))
        grown = Grown(set(), set())
        outcomes = [self._outcome(operation, answers, grown) for operation in operations]
        self._lists.tidy(grown)
        return outcomes

    def _outcome(self, operation: Pushed, answers: Iterator[Any], grown: Grown) -> Applied:
        """Takes an answer for each feed of the operation."""
        step = self._step
        added = _added(operation, step)
        accepted, failed = 0, {}
        for feed, answer in zip(feeds_of(operation), answers, strict=False):
            if isinstance(answer, StrandlineError):
                failed[feed] = answer
                continue
            length, beside = (answer, 1) if type(answer) is int else answer
            if length:
                accepted += 1
                if length % step < added:
                    grown.listed.add(feed)
            if beside % _BESIDE_SLACK == 0:
                grown.beside.add(feed)
        return Applied(accepted, failed)

    # -- reads

    def read(self, feeds: Sequence[str], offset: int, length: int) -> list[FeedAnswer]:
        wanted = offset + length
        size = window_size(wanted, self._limits.slack)
        keys = list(map(list_key, feeds))
        answers = iter(self._redis.read([one for key in keys for one in _end_of(key, size)]))
        ends = [_End(*islice(answers, len(_End._fields))) for _ in feeds]
        found = [self._answer(feed, end, size, wanted) for feed, end in zip(feeds, ends, strict=True)]
        uncertain = [number for number, answer in enumerate(found) if answer is None]
        for number, answer in zip(uncertain, self._whole([feeds[number] for number in uncertain]), strict=True):
            found[number] = answer
        self._renew([key for key, end in zip(keys, ends, strict=True) if self._is_due(end.life)])
        return [_page(answer, offset, wanted) for answer in found if answer is not None]

    def _answer(self, feed: str, end: _End, size: int, wanted: int) -> FeedAnswer | None:
        """The newest entries; None if the end of the list does not tell."""
        failure = next((part for part in end if isinstance(part, StrandlineError)), None)
        if failure is not None:
            return FeedAnswer(feed, "error", error=failure)
        if end.head != end.head_again:
            return None
        if end.head is None:
            return FeedAnswer(feed, "miss")
        whole = len(end.records) < size or end.length <= size
        records, before = (end.records[1:], 0) if whole else (end.records, end.length - size - 1)
        entries = newest(decode_head(end.head), records, before, wanted, self._limits.cap)
        return None if entries is None else FeedAnswer(feed, "hit", tuple(entries))

    def _whole(self, feeds: Sequence[str]) -> Iterator[FeedAnswer]:
        """All entries of feeds."""
        answers = self._redis.read([command(b"LRANGE", list_key(feed), 0, -1) for feed in feeds])
        for feed, answer in zip(feeds, answers, strict=True):
            if isinstance(answer, StrandlineError):
                yield FeedAnswer(feed, "error", error=answer)
            else:
                entries = tuple(visible(_folded(answer), self._limits.cap))
                yield FeedAnswer(feed, "hit", entries) if answer else FeedAnswer(feed, "miss")

    def read_since(self, feed: str, entry_id: int) -> tuple[Entry, ...] | None:
        key = list_key(feed)
        listed, life = _successful(self._redis.read([command(b"LRANGE", key, 0, -1), command(b"PTTL", key)]))
        if not listed:
            return None
        self._renew([key] if self._is_due(life) else [])
        return tuple(since(_folded(listed), entry_id, self._limits.cap))

    def _is_due(self, life: Any) -> bool:
        """Whether a feed with this remaining life was not renewed for long."""
        return (
            isinstance(life, int) and life != _NO_FEED and life <= self._limits.unread_ms - self._limits.renewal_ms
        )

    def _renew(self, keys: Sequence[bytes]) -> None:
        # Without WAIT: the next read repeats a renewal that was lost.
        self._redis.read([command(b"PEXPIRE", key, self._limits.unread_ms) for key in keys])

    # -- the rest

    def expire(self) -> int:
        return 0

    def save_positions(
        self, source: str, positions: Mapping[int, Position], incarnation: str | None = None
    ) -> None:
        fields = [part for partition, position in positions.items() for part in (partition, _encoded(position))]
        keys = self._redis.keys_on_masters(_POSITIONS % source.encode())
        if not fields:
            return
        if incarnation is None:
            _successful(self._redis.write([command(b"HSET", key, *fields) for key in keys]))
            return
        saves = [_SAVE.command([key], incarnation.encode(), *fields) for key in keys]
        if not all(_successful(self._redis.write(saves))):
            raise Unavailable("a part of the store of feeds has started again; its positions are not saved")

    def positions(self, source: str) -> dict[int, Position]:
        keys = self._redis.keys_on_masters(_POSITIONS % source.encode())
        parts = [
            _decoded(fields)
            for fields in _successful(self._redis.read([command(b"HGETALL", key) for key in keys]))
        ]
        everywhere = set.intersection(*map(set, parts))
        return {partition: min(part[partition] for part in parts) for partition in sorted(everywhere)}

    def incarnation(self) -> str:
        ask = pack(b"INFO", b"server")
        masters = [Command(key, ask) for key in self._redis.keys_on_masters(b"incarnation")]
        return " ".join(sorted(map(_run_id, _successful(self._redis.read(masters)))))

    def check(self) -> None:
        _successful(self._redis.read([command(b"EXISTS", key) for key in self._redis.keys_on_masters(b"check")]))

    def close(self) -> None:
        self._redis.close()


def _grouped(operations: Sequence[Operation]) -> Iterator[list[Any]]:
    """Successive operations that are applied together: those that push, or those that replace different feeds."""
    group: list[Operation] = []
    replaced: set[str] = set()
    for operation in operations:
        feed = operation.feed if isinstance(operation, SetFeed | DropFeed) else None
        if group and ((feed is None) == bool(replaced) or feed in replaced):
            yield group
            group, replaced = [], set()
        group.append(operation)
        if feed is not None:
            replaced.add(feed)
    if group:
        yield group


def _added(operation: Pushed, step: int) -> int:
    """How many records an operation adds to a list. The list is always tidied after a merge."""
    if isinstance(operation, MergeEntries):
        return step
    return len(operation.ids) if isinstance(operation, UnmergeEntries) else 1


def _folded(listed: Sequence[bytes]) -> FeedState:
    return fold(map(decode, listed))


def _page(answer: FeedAnswer, offset: int, end: int) -> FeedAnswer:
    return FeedAnswer(answer.name, answer.status, answer.entries[offset:end], answer.error)


def _successful(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, StrandlineError):
            raise answer
    return answers


def _run_id(info: bytes) -> str:
    """A server has a new one after every start."""
    fields = dict(line.partition(b":")[::2] for line in info.split(b"\r\n"))
    return fields[b"run_id"].decode()


def _encoded(position: Position) -> bytes:
    return b"%d %d" % position


def _decoded(fields: Sequence[bytes]) -> dict[int, Position]:
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return {int(partition): Position(*map(int, position.split())) for partition, position in pairs}
