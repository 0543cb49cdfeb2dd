"""The whole publish over HTTP: the server in its own process, one client process with a few connections."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import strandline
from bench import data
from bench.rows.append import PARTITIONS
from bench.rows.publish import event_type
from bench.runner import Row, Scale, Side, Target
from bench.services import Server

_CONNECTIONS = 4


@contextmanager
def _sides(directory: Path, scale: Scale, batch: int, publishes: int) -> Iterator[list[Side]]:
    bodies = data.arrays(data.values(20 * batch), batch)
    each = scale.of(publishes)
    with ExitStack() as stack:
        url = stack.enter_context(Server(directory / "ours", logs_level="warning")).url
        pool = stack.enter_context(ThreadPoolExecutor(_CONNECTIONS))
        log = stack.enter_context(strandline.connect(url)).log
        log.create(event_type())

        def publish(_: int) -> None:
            for number in range(each):
                log.publish("orders", bodies[number % len(bodies)]).raise_for_failed()

        def ours() -> int:
            list(pool.map(publish, range(_CONNECTIONS)))
            return each * batch * _CONNECTIONS

        yield [Side("ours", ours)]


def _row(batch: int, publishes: int, target: Target | None) -> Row:
    return Row(
        f"publish over HTTP, {batch} a batch",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": PARTITIONS,
            "batch": batch,
            "connections": f"{_CONNECTIONS}, one client process",
            "warm-up": "1 round",
            "schema": f"{len(data.SCHEMA['properties'])} properties",
        },
        lambda directory, scale: _sides(directory, scale, batch, publishes),
        target,
    )


ROWS = [_row(1000, 40, Target(rate=100_000)), _row(100, 80, None), _row(1, 200, None)]
