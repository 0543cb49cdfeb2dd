"""Reads everything from the beginning, to Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import strandline
from bench import data
from bench.peers import PlainTable
from bench.rows.append import NOW_MS, PARTITIONS, split
from bench.rows.publish import event_type
from bench.runner import Row, Scale, Side, Target


@contextmanager
def _sides(directory: Path, scale: Scale, batch: int, publishes: int) -> Iterator[list[Side]]:
    items = data.values(10 * batch)
    bodies = data.arrays(items, batch)
    count = scale.of(publishes)
    with strandline.open(directory / "ours") as platform, PlainTable(directory / "peer.db", PARTITIONS) as table:
        platform.log.create(event_type())
        for number in range(count):
            platform.log.publish("orders", bodies[number % 10]).raise_for_failed()
            table.append(NOW_MS, split(items[number % 10 * batch :][:batch]))

        def ours() -> int:
            return sum(found.to_arrow().num_rows for found in platform.log.read("orders"))

        def peer() -> int:
            return sum(_read_all(table, partition) for partition in range(PARTITIONS))

        yield [Side("ours", ours), Side("row per record", peer)]


def _read_all(table: PlainTable, partition: int) -> int:
    offset = 0
    while rows := table.read(partition, offset, 10_000).num_rows:
        offset += rows
    return offset


def _row(batch: int, publishes: int, target: Target | None) -> Row:
    return Row(
        f"read to Arrow, published {batch} at a time",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": PARTITIONS,
            "batch": batch,
            "read size": 10_000,
            "connections": "1 thread, in process",
            "warm-up": "1 round",
        },
        lambda directory, scale: _sides(directory, scale, batch, publishes),
        target,
    )


ROWS = [_row(1000, 400, Target(rate=2_000_000)), _row(1, 2000, None)]
