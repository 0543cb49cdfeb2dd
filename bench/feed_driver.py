"""Stream-Framework in a process of its own, with the old Redis client that it needs.

usage: feed_driver.py PORT FEEDS

It answers each line of its input, all in JSON:

- `["fan", first, posts]` with the number of entries written;
- `["read", times]` and `["many", times]` with the milliseconds of every read;
- `["bytes"]` with the bytes of an entry.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta

import redis
from stream_framework import settings
from stream_framework.activity import Activity
from stream_framework.feeds.redis import RedisFeed
from stream_framework.verbs.base import Love as Verb

_CAP, _LENGTH, _TOGETHER = 800, 20, 100


class Feed(RedisFeed):
    max_length = _CAP


def main(port: int, count: int) -> None:
    settings.STREAM_REDIS_CONFIG["default"] = {"host": "127.0.0.1", "port": port, "db": 3, "password": None}
    feeds = [Feed(number) for number in range(count)]
    print("ready", flush=True)
    for line in sys.stdin:
        name, *numbers = json.loads(line)
        print(json.dumps(_ANSWERS[name](feeds, *numbers)), flush=True)


def _fan(feeds: list[Feed], first: int, posts: int) -> int:
    """What its manager does for a post: insert the activity once, then add it to the feed of every follower."""
    for number in range(first, first + posts):
        at = datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None) + timedelta(milliseconds=number)
        activity = Activity(1, Verb, number, time=at)
        Feed.insert_activity(activity)
        for feed in feeds:
            feed.add(activity)
    return posts * len(feeds)


def _read(feeds: list[Feed], times: int) -> list[float]:
    return _waits(lambda number: feeds[number % len(feeds)][:_LENGTH], times)


def _many(feeds: list[Feed], times: int) -> list[float]:
    return _waits(lambda _: [feed[:_LENGTH] for feed in feeds[:_TOGETHER]], times)


def _waits(read: object, times: int) -> list[float]:
    waits = []
    for number in range(times):
        began = time.perf_counter()
        read(number)
        waits.append((time.perf_counter() - began) * 1000)
    return waits


def _bytes(feeds: list[Feed]) -> float:
    """Of the feeds alone, without the activities that they name."""
    client = redis.StrictRedis(port=settings.STREAM_REDIS_CONFIG["default"]["port"], db=3)
    key = feeds[0].key
    return client.execute_command("MEMORY", "USAGE", key, "SAMPLES", 0) / max(1, client.zcard(key))


_ANSWERS = {"fan": _fan, "read": _read, "many": _many, "bytes": _bytes}

if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
