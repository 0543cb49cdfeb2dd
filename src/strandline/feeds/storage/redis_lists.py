"""The lists of feeds in Redis: what an operation appends, checkpoints, and rewriting.

Checkpoints and compaction change no answer. If they fail, they are repeated when the list has grown again, so
their errors are not errors of the operation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from strandline.clock import Clock
from strandline.engine.redis import Redis
from strandline.engine.redis_commands import Command, Script, command, for_each_key
from strandline.errors import Conflict, StrandlineError
from strandline.feeds.fold import FeedState, compact, fold
from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    DropFeed,
    FeedLimits,
    MergeEntries,
    SetFeed,
    UnmergeEntries,
)
from strandline.feeds.records import Record, decode, encode, of_operation
from strandline.feeds.storage.redis_layout import GENERATION_BYTES, RESERVE, beside_key, lay_out, list_key

#: Operations that append records to lists.
Pushed = AppendEntry | DeleteEntry | MergeEntries | UnmergeEntries
#: Operations that replace whole lists.
Replacing = SetFeed | DropFeed

# How many new records a script looks at, at most; with more, the list is rewritten.
_CHECKPOINT_RECORDS = 1_000
_ATTEMPTS = 20
# An operation time is milliseconds and 20 more bits.
_TIME_SHIFT = 20


def load_script(name: str) -> Script:
    file = resources.files("strandline.feeds.storage").joinpath("lua", f"{name}.lua")
    return Script(file.read_text(encoding="utf-8"))


_ADVANCE, _REWRITE, _REPLACE, _DELETE = SCRIPTS = tuple(
    map(load_script, ("advance", "rewrite", "replace", "delete"))
)


class Grown(NamedTuple):
    """The feeds whose lists have grown by the slack, and those beside which there are many new tombstones."""

    listed: set[str]
    beside: set[str]


class _Change(NamedTuple):
    """Records to be added to a feed. A set that becomes the start of the feed renews its life."""

    feed: str
    records: Sequence[Record]
    renews_at: int | None = None


class FeedLists:
    def __init__(self, redis: Redis, limits: FeedLimits, clock: Clock) -> None:
        self._redis = redis
        self._limits = limits
        self._clock = clock

    def commands(self, operation: Pushed) -> list[Command]:
        """One for each feed of the operation. Its answer is the length of the list, or of both for a delete."""
        records = [encode(record) for record in of_operation(operation)]
        if isinstance(operation, AppendEntry):
            return for_each_key(b"RPUSHX", list(map(list_key, operation.feeds)), records[0])
        if isinstance(operation, DeleteEntry):
            keys = ((list_key(feed), beside_key(feed)) for feed in operation.feeds)
            return [_DELETE.command(both, records[0], self._limits.grace_ms) for both in keys]
        key = list_key(operation.feed)
        return [command(b"RPUSHX", key, *records) if records else command(b"LLEN", key)]

    def tidy(self, grown: Grown) -> None:
        """Write checkpoints and trim lists, or rewrite lists whose records are out of order."""
        if grown.beside:
            self._try_to_replace([_Change(feed, ()) for feed in sorted(grown.beside)])
        if not grown.listed:
            return
        keys = [list_key(feed) for feed in sorted(grown.listed)]
        numbers = (self._limits.cap, RESERVE, _CHECKPOINT_RECORDS)
        checkpoints = [_ADVANCE.command([key], *numbers, _generation()) for key in keys]
        answers = self._redis.write(checkpoints)
        self._rewrite([key for key, answer in zip(keys, answers, strict=True) if answer == 0])

    def _rewrite(self, keys: Sequence[bytes]) -> None:
        """Compact lists. A list that another client has rewritten meanwhile is left alone."""
        found = self._redis.read([command(b"LRANGE", key, 0, -1) for key in keys])
        rewrites = []
        for key, listed in zip(keys, found, strict=True):
            if listed and not isinstance(listed, StrandlineError):
                new, _ = self._compacted(fold(map(decode, listed)))
                rewrites.append(_REWRITE.command([key], listed[0], len(listed), *new))
        self._redis.write(rewrites)

    def replace(self, operations: Sequence[Replacing]) -> list[bool | StrandlineError]:
        """Apply operations on different feeds. Each answer is whether the feed existed before, or an error."""
        answers: list[bool | StrandlineError] = [Conflict("the feed changes too often") for _ in operations]
        pending = list(range(len(operations)))
        for _ in range(_ATTEMPTS):
            done = self._try_to_replace([self._change(operations[number]) for number in pending])
            for number, answer in zip(pending, done, strict=True):
                answers[number] = answers[number] if answer is None else answer
            pending = [number for number, answer in zip(pending, done, strict=True) if answer is None]
            if not pending:
                break
        return answers

    def _change(self, operation: Replacing) -> _Change:
        epoch = operation.time if isinstance(operation, SetFeed) else None
        return _Change(operation.feed, of_operation(operation), epoch)

    def _try_to_replace(self, changes: Sequence[_Change]) -> list[bool | StrandlineError | None]:
        """Add records to different feeds, and compact them.

        The answer is whether the feed existed before, an error, or None if the feed was rewritten meanwhile.
        """
        keys = [(list_key(change.feed), beside_key(change.feed)) for change in changes]
        found = iter(self._redis.read([command(b"LRANGE", key, 0, -1) for both in keys for key in both]))
        answers: list[bool | StrandlineError | None] = []
        writes: dict[int, Command] = {}
        for number, (both, change) in enumerate(zip(keys, changes, strict=True)):
            listed, beside = next(found), next(found)
            failure = next((part for part in (listed, beside) if isinstance(part, StrandlineError)), None)
            answers.append(failure or bool(listed))
            if failure is None:
                state = fold([*map(decode, beside), *map(decode, listed), *change.records])
                life_ms = self._limits.unread_ms if change.renews_at == state.start else 0
                writes[number] = self._replacement(both, listed, beside, state, life_ms)
        for number, answer in zip(writes, self._redis.write(list(writes.values())), strict=True):
            if answer != 1:
                answers[number] = answer or None
        return answers

    def _replacement(
        self,
        keys: Sequence[bytes],
        listed: Sequence[bytes],
        beside: Sequence[bytes],
        state: FeedState,
        life_ms: int,
    ) -> Command:
        expected = (listed[0] if listed else b"", len(listed), len(beside), b"".join(beside))
        new_listed, new_beside = self._compacted(state)
        lives = (life_ms, self._limits.grace_ms)
        return _REPLACE.command(keys, *expected, *lives, len(new_listed), *new_listed, *new_beside)

    def _compacted(self, state: FeedState) -> tuple[list[bytes], list[bytes]]:
        """The new list, and what is beside it."""
        state.forget((self._clock.now_ms() - self._limits.grace_ms) << _TIME_SHIFT)
        listed, beside = compact(state, self._limits.cap)
        return lay_out(listed, len(state.ids), _generation()) if listed else [], [encode(one) for one in beside]


def _generation() -> bytes:
    return os.urandom(GENERATION_BYTES)
