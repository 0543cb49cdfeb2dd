"""A second process that uses a store: `schedule_worker.py <address>`.

A test calls the functions below through `peers`.
"""

from __future__ import annotations

import sys

from schedule_place import MEGABYTE, act, everything, message, open_database

from peers import say, serve
from strandline import failpoints
from strandline.clock import SystemClock
from strandline.schedule.storage.sql import SqlSchedules


def create(store: SqlSchedules, prefix: str, count: int) -> int:
    """Create batches of 20 until the process is killed; report each acknowledged batch."""
    for batch in range(count):
        items = [message(f"{prefix}-{batch}-{n}") for n in range(20)]
        assert all(answer.status == "ok" for answer in store.messages.create("s", items))
        failpoints.hit("test.created")
        say(batch)
    return count


def work(store: SqlSchedules, consumer: str, count: int) -> int:
    """Lease and delete until the process is killed; report the ids of each acknowledged delete."""
    for _ in range(count):
        leases = store.due.lease("s", [everything(consumer, 20)], MEGABYTE).leases
        failpoints.hit("test.leased")
        assert all(answer.status == "ok" for answer in store.messages.delete("s", [act(one) for one in leases]))
        say([one.message.id for one in leases])
    return count


if __name__ == "__main__":
    database = open_database(sys.argv[1])
    serve(SqlSchedules(database, None if database.shared else SystemClock().now_ms), create, work)
