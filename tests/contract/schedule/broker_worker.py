"""A node in a process of its own: `broker_worker.py <folder> <url>`. A test calls the functions below."""

from __future__ import annotations

import sys
from pathlib import Path

from broker_place import MINUTE, act

from peers import say, serve
from strandline import failpoints
from strandline.clock import SystemClock
from strandline.platform import Platform
from strandline.schedule.settings import ScheduleSettings
from strandline.settings import Settings


def consume(platform: Platform, consumer: str, lease_ms: int, count: int, point: str) -> None:
    """Take leases and say what they are. The process is killed or paused at a failpoint after it has begun."""
    failpoints.arm(point)
    with_feed = platform.schedule("s").subscribe(consumer, lease_ms, 1)
    for _ in range(count):
        lease = with_feed.next(MINUTE)
        failpoints.hit("test.received")
        say(lease)
        if lease is not None:
            with_feed.delete([act(lease)])
            failpoints.hit("test.deleted")


if __name__ == "__main__":
    folder, url = sys.argv[1:]
    settings = Settings(schedule=ScheduleSettings(url=url))
    serve(Platform(Path(folder), settings, SystemClock()), consume)
