"""A consumer of a schedule that fails: `failing_consumer.py <url> <schedule>`. A test calls the function below."""

from __future__ import annotations

import sys

import strandline
from peers import say, serve
from strandline import failpoints
from strandline.schedule import ScheduleMessages


def process(messages: ScheduleMessages, consumer: str, lease_ms: int, point: str) -> str:
    """Process one message: extend its lease, then delete it. Says when it has begun, with the lease."""
    failpoints.arm(point)
    with messages.consume(consumer, lease_ms=lease_ms) as leases:
        lease = leases.receive()
        assert lease is not None
        say(lease.message)
        failpoints.hit("test.begun")
        lease.extend()
        failpoints.hit("test.finished")
        lease.delete()
    return "done"


if __name__ == "__main__":
    url, schedule = sys.argv[1:]
    with strandline.connect(url, timeout=30) as remote:
        serve(remote.schedule(schedule), process)
