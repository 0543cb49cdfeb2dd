"""The relay: events per second from one event type through a schedule to another one, all due at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import strandline
from bench import data
from bench.rows.spark import fill, session
from bench.runner import Row, Scale, Side
from strandline import EventType
from strandline.pipeline.tasks import SparkFill
from strandline.schedule.relay.starting import Relays
from strandline.schedule.relay.values import RelayOptions

_EVENTS = 50_000
_PARTITIONS = 2
_AT_ONCE = 2_000


@contextmanager
def _beside_a_copy(directory: Path, scale: Scale) -> Iterator[list[Side]]:
    count = scale.of(_EVENTS // 1000) * 1000
    with strandline.open(directory) as platform, session() as spark:
        fill(platform, count, _PARTITIONS)
        for name in ("relayed", "copied"):
            platform.log.create(EventType(name, partitions=_PARTITIONS))
        relays = Relays(platform.log, platform.schedules, platform.databases, platform.settings)
        numbers = itertools.count()

        def ours() -> int:
            # A new schedule has a new relay, which starts with the oldest event.
            options = RelayOptions("orders", "relayed", f"round-{next(numbers)}")
            relays.process(options, SparkFill(spark)).once()
            return count

        def peer() -> int:
            for batch in platform.log.read("orders", batch_size=_AT_ONCE):
                platform.log.publish("copied", batch.values).raise_for_failed()
            return count

        yield [Side("ours", ours), Side("copied in a loop, without a delay, at least once", peer)]


ROWS = [
    Row(
        "relay",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": _PARTITIONS,
            "events": _EVENTS,
            "batch": _AT_ONCE,
            "delay": "none: all events are due at once",
            "storage": "SQLite, log and schedule",
            "connections": "local[2]",
            "warm-up": "1 round",
        },
        _beside_a_copy,
    ),
]
