"""Appends encoded values to the storage: one caller, one batch after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import data
from bench.peers import PlainTable
from bench.runner import Row, Scale, Side, Target
from strandline.log.records import NewRecords
from strandline.log.storage.sqlite import SqliteStorage

PARTITIONS = 4
NOW_MS = 1_700_000_000_000


def split(values: Sequence[bytes]) -> dict[int, Sequence[bytes]]:
    return {p: values[p::PARTITIONS] for p in range(min(PARTITIONS, len(values)))}


@contextmanager
def _sides(directory: Path, scale: Scale, batch: int, rounds_of: int) -> Iterator[list[Side]]:
    values = data.values(50 * batch)
    batches = [split(values[at : at + batch]) for at in range(0, len(values), batch)]
    ready = [{p: NewRecords(NOW_MS, part) for p, part in parts.items()} for parts in batches]
    count = scale.of(rounds_of)
    storage = SqliteStorage(directory / "ours")
    storage.create_topic("orders", PARTITIONS, 0)

    def ours() -> int:
        for parts in itertools.islice(itertools.cycle(ready), count):
            if storage.try_append("orders", parts) is None:  # as a publish does it
                storage.append("orders", parts, waits=True).result()
        return count * batch

    with PlainTable(directory / "peer.db", PARTITIONS) as table:

        def peer() -> int:
            for parts in itertools.islice(itertools.cycle(batches), count):
                table.append(NOW_MS, parts)
            return count * batch

        yield [Side("ours", ours), Side("row per record", peer)]
    storage.close()


def _row(batch: int, appends: int, target: Target | None) -> Row:
    return Row(
        f"storage append, {batch} a batch",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": PARTITIONS,
            "batch": batch,
            "connections": "1 thread, in process",
            "warm-up": "1 round",
            "durability": "fsync per commit",
        },
        lambda directory, scale: _sides(directory, scale, batch, appends),
        target,
    )


ROWS = [_row(1000, 600, Target(ratio=3)), _row(100, 1000, None), _row(1, 2000, Target(ratio=0.9))]
