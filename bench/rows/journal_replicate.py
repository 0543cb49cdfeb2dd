"""The job `replicate` on Spark: actions of the log into the store of journals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import strandline
from bench import databases, journals
from bench.rows.spark import session
from bench.runner import Row, Scale, Side, Target
from strandline.pipeline.tasks import SparkReplication

_EVENTS = 200_000
_PARTITIONS = 2
_TARGETS = {"PostgreSQL": {5: 50_000, 100: 50_000}, "Cassandra": {5: 20_000, 100: 50_000}}
# Rounds before those that are measured. Cassandra compiles its code while it works.
_WARM_UP = {"PostgreSQL": 1, "Cassandra": 4}


@contextmanager
def _sides(directory: Path, scale: Scale, engine: str, per_entity: int) -> Iterator[list[Side]]:
    entities = [f"order-{number}" for number in range(max(1, scale.of(_EVENTS) // per_entity))]
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        platform = stack.enter_context(strandline.open(store.prepare(directory / "ours", "journal")))
        spark = stack.enter_context(session())
        process = platform.journals.replicators.process(SparkReplication(spark))
        numbers = count()

        def prepare() -> None:
            topic = f"{journals.TOPIC}{next(numbers)}"
            platform.journals.create(topic, partitions=_PARTITIONS)
            journals.fill(platform.journals, topic, entities, per_entity)

        def run() -> int:
            process.once()
            return len(entities) * per_entity

        for _ in range(_WARM_UP[engine] - 1):
            prepare()
            run()
        yield [Side("ours", run, store.own_cpu, prepare)]


def _row(engine: str, per_entity: int) -> Row:
    target, rounds = _TARGETS[engine].get(per_entity), _WARM_UP[engine]
    return Row(
        f"journal, replicate to {engine}, {per_entity} event{'s' if per_entity > 1 else ''} an entity",
        {
            "event bytes": len(journals.bodies()[0]),
            "events": f"{_EVENTS:,}, one an append, the entities take turns",
            "partitions": _PARTITIONS,
            "master": "local[2], started before; the store runs on the same two cores",
            "CPU time": "that of the driver and the store, without the workers of Spark",
            "warm-up": f"{rounds} round{'s' if rounds > 1 else ''}",
        },
        lambda directory, scale: _sides(directory, scale, engine, per_entity),
        Target(rate=target) if target else None,
    )


ROWS = [_row(engine, per_entity) for engine in _TARGETS for per_entity in (1, 5, 100)]
