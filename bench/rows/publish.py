"""The whole publish in process: split the JSON array, decode, validate, partition, enrich, store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import strandline
from bench import data
from bench.peers import PlainTable
from bench.rows.append import NOW_MS, PARTITIONS, split
from bench.runner import Row, Scale, Side, Target

_Category = Literal["undefined", "business", "data"]


def event_type(category: _Category = "undefined") -> strandline.EventType:
    return strandline.EventType(
        "orders", category=category, partitions=PARTITIONS, schema=strandline.Schema.json(data.SCHEMA)
    )


def items_of(category: _Category, count: int) -> list[bytes]:
    return {"undefined": data.values, "business": data.business, "data": data.changes}[category](count)


@contextmanager
def _sides(directory: Path, scale: Scale, category: _Category, batch: int, publishes: int) -> Iterator[list[Side]]:
    items = items_of(category, 50 * batch)
    bodies = data.arrays(items, batch)
    plain = [split(items[at : at + batch]) for at in range(0, len(items), batch)]
    count = scale.of(publishes)
    with strandline.open(directory / "ours") as platform, PlainTable(directory / "peer.db", PARTITIONS) as table:
        platform.log.create(event_type(category))

        def ours() -> int:
            for body in itertools.islice(itertools.cycle(bodies), count):
                platform.log.publish("orders", body).raise_for_failed()
            return count * batch

        def peer() -> int:
            for parts in itertools.islice(itertools.cycle(plain), count):
                table.append(NOW_MS, parts)
            return count * batch

        yield [Side("ours", ours), Side("row per record, nothing checked", peer)]


def _row(category: _Category, batch: int, publishes: int, target: Target | None = None) -> Row:
    return Row(
        f"publish, {category}, {batch} a batch",
        {
            "event bytes": data.mean_size(items_of(category, 1000)),
            "partitions": PARTITIONS,
            "batch": batch,
            "connections": "1 thread, in process",
            "warm-up": "1 round",
            "schema": f"{len(data.SCHEMA['properties'])} properties",
        },
        lambda directory, scale: _sides(directory, scale, category, batch, publishes),
        target,
    )


ROWS = [
    _row("undefined", 1000, 150, Target(ratio=1.5)),
    _row("undefined", 100, 300, Target(ratio=1.2)),
    _row("undefined", 1, 500, Target(ratio=0.75)),
    _row("business", 1000, 100, Target(rate=150_000)),
    _row("data", 1000, 100),
]
