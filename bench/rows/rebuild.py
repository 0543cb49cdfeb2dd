"""The job `rebuild` on Spark: home feeds from the log and the follow graph, beside a loop that does the same."""

from __future__ import annotations

import base64
import heapq
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import redis

import strandline
from bench import feeds
from bench.rows.spark import session
from bench.runner import Row, Scale, Side
from bench.services import ValkeyServer
from strandline import EventType
from strandline.feeds.fanout.delivery import parts
from strandline.feeds.fanout.rebuild import RebuildOptions
from strandline.feeds.fanout.values import FanoutOptions
from strandline.feeds.settings import FeedSettings
from strandline.pipeline.tasks import SparkRestore
from strandline.platform import Platform
from strandline.settings import Settings

_USERS, _AUTHORS, _POSTS, _FOLLOWED = 2_000, 200, 50, 20
_PARTITIONS = 2
_AT_ONCE = 5_000
_OPTIONS = FanoutOptions("posts", "follows", batch=_AT_ONCE)

#: The authors that each user follows.
_Graph = Mapping[str, Sequence[str]]


def _graph(users: int) -> _Graph:
    """Every author has about as many followers."""
    return {
        f"user{number}": [f"author{(number * 7 + step * 11) % _AUTHORS}" for step in range(_FOLLOWED)]
        for number in range(users)
    }


def _fill(platform: Platform, graph: _Graph) -> None:
    """Publish posts and follows, and let the fan-out build its graph. Nobody has a home feed yet."""
    metadata = base64.b64encode(feeds.METADATA).decode()
    posts = [
        {"author": f"author{number % _AUTHORS}", "id": number, "metadata": metadata}
        for number in range(_AUTHORS * _POSTS)
    ]
    follows = [
        {"follower": user, "author": author, "action": "follow"}
        for user, authors in graph.items()
        for author in authors
    ]
    for name, key, events in (("posts", "author", posts), ("follows", "follower", follows)):
        platform.log.create(
            EventType(name, partitions=_PARTITIONS, partition_strategy="hash", partition_key_fields=(key,))
        )
        for some in parts(events, _AT_ONCE):
            platform.log.publish(name, some).raise_for_failed()
    platform.feeds.fanouts.process(_OPTIONS).once()


class _Loop:
    """One thread with redis-py: all posts into a list for each author, then those of a user's authors into one."""

    def __init__(self, platform: Platform, graph: _Graph, client: redis.Redis) -> None:
        self._log = platform.log
        self._graph = graph
        self._client = client

    def run(self) -> int:
        own: dict[str, list[bytes]] = {}
        for batch in self._log.read("posts", batch_size=_AT_ONCE):
            for post in map(msgspec.json.decode, batch.values):
                entry = post["id"].to_bytes(8) + base64.b64decode(post["metadata"])
                own.setdefault(post["author"], []).append(entry)
        self._write({f"posts:{author}": sorted(entries) for author, entries in own.items()})
        for some in parts([*self._graph.items()], feeds.TOGETHER):
            self._write(self._homes(some))
        return len(self._graph)

    def _homes(self, some: Sequence[tuple[str, Sequence[str]]]) -> dict[str, list[bytes]]:
        with self._client.pipeline(transaction=False) as pipe:
            for _, authors in some:
                for author in authors:
                    pipe.lrange(f"posts:{author}", -feeds.CAP, -1)
            answers = iter(pipe.execute())
        return {
            f"home:{user}": [*heapq.merge(*itertools.islice(answers, len(authors)))][-feeds.CAP :]
            for user, authors in some
        }

    def _write(self, lists: Mapping[str, Sequence[bytes]]) -> None:
        with self._client.pipeline() as pipe:
            for name, entries in lists.items():
                pipe.delete(name)
                pipe.rpush(name, *entries)
            pipe.execute()


@contextmanager
def _sides(directory: Path, scale: Scale, engine: str) -> Iterator[list[Side]]:
    graph = _graph(scale.of(_USERS))
    with ExitStack() as stack:
        server = stack.enter_context(ValkeyServer(directory)) if engine == "Valkey" else None
        settings = Settings(feeds=FeedSettings(url=f"{server.url}/0" if server else "", record=False))
        platform = stack.enter_context(strandline.open(directory / "ours", settings=settings))
        spark = stack.enter_context(session())
        _fill(platform, graph)
        rebuild = platform.feeds.fanouts.rebuild(platform.archive.values_before)

        def ours() -> int:
            return rebuild.run(RebuildOptions(), SparkRestore(spark), threading.Event(), lambda _: None)

        sides = [Side("ours", ours)]
        if server is not None:
            client = redis.Redis(port=server.port, db=1)
            stack.callback(client.close)
            sides.append(Side("a loop with redis-py, not beside a fan-out", _Loop(platform, graph, client).run))
        yield sides


def _row(engine: str) -> Row:
    return Row(
        f"feeds, rebuild, {engine}",
        {
            "what is counted": "home feeds",
            "users": f"{_USERS:,}, who follow {_FOLLOWED} of {_AUTHORS} authors",
            "posts": f"{_AUTHORS * _POSTS:,}, all in the log; {min(feeds.CAP, _FOLLOWED * _POSTS)} in a home feed",
            "metadata bytes": len(feeds.METADATA),
            "partitions": _PARTITIONS,
            "feeds of authors": "restored in every round, too",
            "connections": "local[2]; the loop: 1 thread",
            "warm-up": "1 round",
        },
        lambda directory, scale: _sides(directory, scale, engine),
    )


ROWS = [_row("Valkey"), _row("SQLite")]
