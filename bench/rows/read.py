"""Reads everything from the beginning, to Arrow: in the form in which it was published, and after compaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import strandline
from bench import data
from bench.peers import PlainTable
from bench.rows.append import NOW_MS, PARTITIONS, split
from bench.rows.publish import event_type
from bench.runner import Row, Scale, Side, Target
from strandline.engine.sqlite import SqliteConnection
from strandline.log.storage import compaction


@contextmanager
def _sides(directory: Path, scale: Scale, batch: int, publishes: int, form: str) -> Iterator[list[Side]]:
    items = data.values(10 * batch)
    bodies = data.arrays(items, batch)
    count = scale.of(publishes)
    with (
        _compacting_when_idle(wanted=form == "after compaction"),
        strandline.open(directory / "ours") as platform,
        PlainTable(directory / "peer.db", PARTITIONS) as table,
    ):
        platform.log.create(event_type())
        for number in range(count):
            platform.log.publish("orders", bodies[number % 10]).raise_for_failed()
            table.append(NOW_MS, split(items[number % 10 * batch :][:batch]))
        if form == "after compaction":
            _wait_for_compaction(directory / "ours" / "topics" / f"{platform.log.timelines('orders')[0].topic}.db")

        def ours() -> int:
            return sum(found.to_arrow().num_rows for found in platform.log.read("orders"))

        def peer() -> int:
            return sum(_read_all(table, partition) for partition in range(PARTITIONS))

        yield [Side("ours", ours), Side("row per record", peer)]


@contextmanager
def _compacting_when_idle(*, wanted: bool) -> Iterator[None]:
    """Otherwise the later rounds would not read at once: an idle topic is compacted completely."""
    usual = compaction._IDLE_SECONDS  # noqa: SLF001 - no setting, because only a benchmark needs it
    compaction._IDLE_SECONDS = usual if wanted else 86_400  # noqa: SLF001
    try:
        yield
    finally:
        compaction._IDLE_SECONDS = usual  # noqa: SLF001


def _wait_for_compaction(topic: Path) -> None:
    with closing(SqliteConnection(topic)) as file:
        while file.execute("SELECT 1 FROM small_batches LIMIT 1"):
            time.sleep(0.1)


def _read_all(table: PlainTable, partition: int) -> int:
    offset = 0
    while rows := table.read(partition, offset, 10_000).num_rows:
        offset += rows
    return offset


def _row(batch: int, publishes: int, form: str, target: Target) -> Row:
    return Row(
        f"read to Arrow, published {batch} at a time{form and f', {form}'}",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": PARTITIONS,
            "batch": batch,
            "events": batch * publishes,
            "read size": 10_000,
            "connections": "1 thread, in process",
            "warm-up": "1 round",
        },
        lambda directory, scale: _sides(directory, scale, batch, publishes, form),
        target,
    )


ROWS = [
    _row(1000, 400, "", Target(rate=2_000_000)),
    _row(1, 50_000, "at once", Target(ratio=1)),
    _row(1, 50_000, "after compaction", Target(ratio=5)),
]
