"""Feeds under test, and their peers: a plain list, Mastodon's sorted set, Stream-Framework, a plain table."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from bench.queues import fetch
from bench.services import environment
from strandline.clock import SystemClock
from strandline.engine.connect import Databases
from strandline.feeds.model import AppendEntry, Entry, SetFeed
from strandline.feeds.records import encode, of_operation
from strandline.feeds.settings import FeedSettings
from strandline.feeds.storage.connect import connect
from strandline.feeds.times import OperationClock

CAP = 800
FEEDS = 500
LENGTH = 20
#: How many feeds are read in one call.
TOGETHER = 100
METADATA = b"author-1"


def names() -> list[str]:
    return [f"home:{number}" for number in range(FEEDS)]


class Side(ABC):
    """A way to store the feeds `names()`. Ids are given in rising order."""

    @abstractmethod
    def fan(self, first: int, posts: int) -> int:
        """Write posts with rising ids to all feeds, each post by itself; returns the number of entries written."""

    @abstractmethod
    def read(self, times: int) -> list[float]:
        """The milliseconds of every read of the newest entries of one feed."""

    @abstractmethod
    def many(self, times: int) -> list[float]:
        """The milliseconds of every read of the newest entries of several feeds together."""

    @abstractmethod
    def entry_bytes(self) -> float:
        """What one entry of a feed takes in the store."""

    def close(self) -> None:  # noqa: B027 - most sides hold nothing
        """Release what the side holds."""


def _waits(read: Callable[[int], object], times: int) -> list[float]:
    waits = []
    for number in range(times):
        began = time.perf_counter()
        read(number)
        waits.append((time.perf_counter() - began) * 1000)
    return waits


class _Client(Side):
    """`_newest` and `_newest_of` read the newest entries of one feed and of several."""

    def read(self, times: int) -> list[float]:
        keys = names()
        return _waits(lambda number: self._newest(keys[number % FEEDS]), times)

    def many(self, times: int) -> list[float]:
        keys = names()[:TOGETHER]
        return _waits(lambda _: self._newest_of(keys), times)

    @abstractmethod
    def _newest(self, feed: str) -> object: ...

    @abstractmethod
    def _newest_of(self, feeds: Sequence[str]) -> object: ...


class Ours(_Client):
    """The store as the job `fanout` uses it, without recording. `size` gives the bytes of an entry."""

    def __init__(self, url: str, folder: Path, size: Callable[[], float]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._databases = Databases(folder)
        self._store = connect(FeedSettings(url=url), self._databases, SystemClock())
        self._times = OperationClock(SystemClock())
        self._size = size
        new = [SetFeed(self._times.next(), name, ()) for name in names()]
        _all_applied(self._store.apply(new))

    def fan(self, first: int, posts: int) -> int:
        feeds = tuple(names())
        for number in range(first, first + posts):
            entry = Entry(number, METADATA)
            _all_applied(self._store.apply([AppendEntry(self._times.next(), entry, feeds)]))
        return posts * FEEDS

    def _newest(self, feed: str) -> object:
        return self._store.read([feed], 0, LENGTH)[0].entries

    def _newest_of(self, feeds: Sequence[str]) -> object:
        return self._store.read(feeds, 0, LENGTH)

    def entry_bytes(self) -> float:
        return self._size()

    def close(self) -> None:
        self._store.close()
        self._databases.close()


def _all_applied(applied: Sequence[Any]) -> None:
    for one in applied:
        for error in one.failed.values():
            raise error


# -- in Redis


def list_bytes(port: int, database: int, key: str) -> float:
    """The bytes of an entry of a list or a sorted set."""
    client = redis.Redis(port=port, db=database)
    count: Any = client.llen(key) if client.type(key) == b"list" else client.zcard(key)
    size: Any = client.memory_usage(key, samples=0)
    return float(size) / max(1, count)


class PlainList(_Client):
    """A pipeline of redis-py with the same bytes: one RPUSHX for each feed of a post, LRANGE to read."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._redis = redis.Redis(port=port, db=1)
        pipeline = self._redis.pipeline(transaction=False)
        for name in names():
            pipeline.rpush(name, _bytes_of(0))
        pipeline.execute()

    def fan(self, first: int, posts: int) -> int:
        keys = names()
        for number in range(first, first + posts):
            pipeline, value = self._redis.pipeline(transaction=False), _bytes_of(number)
            for key in keys:
                pipeline.rpushx(key, value)
            pipeline.execute()
        return posts * FEEDS

    def _newest(self, feed: str) -> object:
        return self._redis.lrange(feed, -LENGTH, -1)

    def _newest_of(self, feeds: Sequence[str]) -> object:
        pipeline = self._redis.pipeline(transaction=False)
        for feed in feeds:
            pipeline.lrange(feed, -LENGTH, -1)
        return pipeline.execute()

    def entry_bytes(self) -> float:
        return list_bytes(self._port, 1, names()[0])


def _bytes_of(number: int) -> bytes:
    operation = AppendEntry(1_700_000_000_000 << 20, Entry(number, METADATA), ())
    return encode(of_operation(operation)[0])


class SortedSet(_Client):
    """As Mastodon stores a home timeline: the id is member and score, and every write trims. No metadata."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._redis = redis.Redis(port=port, db=2)

    def fan(self, first: int, posts: int) -> int:
        keys = names()
        for number in range(first, first + posts):
            pipeline = self._redis.pipeline(transaction=False)
            for key in keys:
                pipeline.zadd(key, {str(number): number})
                pipeline.zremrangebyrank(key, 0, -(CAP + 1))
            pipeline.execute()
        return posts * FEEDS

    def _newest(self, feed: str) -> object:
        return self._redis.zrevrange(feed, 0, LENGTH - 1)

    def _newest_of(self, feeds: Sequence[str]) -> object:
        pipeline = self._redis.pipeline(transaction=False)
        for feed in feeds:
            pipeline.zrevrange(feed, 0, LENGTH - 1)
        return pipeline.execute()

    def entry_bytes(self) -> float:
        return list_bytes(self._port, 2, names()[0])


class StreamFramework(Side):
    """In a process of its own, because it needs an old Redis client. It has no call for several feeds."""

    def __init__(self, port: int, log_file: Path) -> None:
        program = Path(__file__).with_name("feed_driver.py")
        packages = str(fetch.stream_framework())
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(port), str(FEEDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(PYTHONPATH=packages),
            )
        self._log_file = log_file
        self._line()

    def fan(self, first: int, posts: int) -> int:
        return int(self._ask("fan", first, posts))

    def read(self, times: int) -> list[float]:
        return [*self._ask("read", times)]

    def many(self, times: int) -> list[float]:
        return [*self._ask("many", times)]

    def entry_bytes(self) -> float:
        return float(self._ask("bytes"))

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver has ended: {self._log_file.read_text()[-500:]}")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


# -- in SQLite


class PlainTable(_Client):
    """A table of entries in a SQLite file, with WAL and `synchronous=FULL`: a transaction for each post."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = FULL;
            CREATE TABLE entry (feed INTEGER, id INTEGER, metadata BLOB, PRIMARY KEY (feed, id)) WITHOUT ROWID;
            """
        )
        self._numbers = {name: number for number, name in enumerate(names())}

    def fan(self, first: int, posts: int) -> int:
        for number in range(first, first + posts):
            rows = [(feed, number, METADATA) for feed in self._numbers.values()]
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR IGNORE INTO entry VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")
        return posts * FEEDS

    def _newest(self, feed: str) -> object:
        newest = "SELECT id, metadata FROM entry WHERE feed = ? ORDER BY id DESC LIMIT ?"
        return self._database.execute(newest, (self._numbers[feed], LENGTH)).fetchall()

    def _newest_of(self, feeds: Sequence[str]) -> object:
        return [self._newest(feed) for feed in feeds]

    def entry_bytes(self) -> float:
        return table_bytes(self._file, "entry")

    def close(self) -> None:
        self._database.close()


def table_bytes(file: Path, table: str) -> float:
    """The bytes of the file for each row of a table, whose WAL is written back."""
    database = sqlite3.connect(file)
    try:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((count,),) = database.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - a name of this module
    finally:
        database.close()
    return file.stat().st_size / max(1, count)
