"""How late due messages reach a consumer in another process, at 1,000 due messages a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import databases, schedules
from bench.intake import Consumer, Intake, by_pull, by_push
from bench.runner import Row, Scale, Side, Target
from bench.schedules import CONSUMER, LEASE_MS, Served
from strandline.schedule import ScheduleMessages, raise_for_failed

_A_SECOND = 1_000
_SECONDS = 5
_LEAD_MS = 3_000
_CREATED_AT_ONCE = 500
_CREDIT = 1_000
_PULLERS = 2
# Messages that are created when they are due come in small batches.
_PACE_S = 0.01


def _consumers(node: Served, way: str, stack: ExitStack) -> list[Consumer]:
    if way == "pull":
        return [by_pull(client) for client in node.clients[:_PULLERS]]
    feed = node.clients[0].subscribe(CONSUMER, LEASE_MS, _CREDIT)
    stack.callback(feed.close)
    return [by_push(feed)]


def _ahead(messages: ScheduleMessages, count: int) -> None:
    """One message for each millisecond, all created before the first is due."""
    first_ms = time.time_ns() // 1_000_000 + _LEAD_MS
    moments = iter(range(first_ms, first_ms + count))
    for start in range(0, count, _CREATED_AT_ONCE):
        new = schedules.new(min(_CREATED_AT_ONCE, count - start), lambda: next(moments))
        raise_for_failed(messages.create(new))
    if time.time_ns() // 1_000_000 > first_ms:
        raise RuntimeError("creating the messages took too long: some were due before the round")


def _live(messages: ScheduleMessages, count: int) -> None:
    """Messages that are due at once, at a steady pace."""
    batch = round(_A_SECOND * _PACE_S)
    begin = time.monotonic()
    for number in range(0, count, batch):
        time.sleep(max(0.0, begin + number / _A_SECOND - time.monotonic()))
        raise_for_failed(messages.create(schedules.new(min(batch, count - number))))


@contextmanager
def _sides(directory: Path, scale: Scale, engine: str, way: str) -> Iterator[list[Side]]:
    count = scale.of(_A_SECOND * _SECONDS)
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        node = stack.enter_context(schedules.served(store.prepare(directory / "ours", "schedule"), _PULLERS))
        consumers = _consumers(node, way, stack)

        def ours() -> list[float]:
            return [arrival.late_ms for arrival in Intake(consumers, count).run()]

        yield [Side("ours", ours, prepare=lambda: _ahead(node.clients[0], count))]


@contextmanager
def _sides_of_two_nodes(directory: Path, scale: Scale) -> Iterator[list[Side]]:
    count = scale.of(_A_SECOND * _SECONDS)
    with ExitStack() as stack:
        store = stack.enter_context(databases.database("PostgreSQL", directory))
        pool = stack.enter_context(ThreadPoolExecutor(1))

        def side(name: str, news: str) -> Side:
            data = store.prepare(directory / news, "schedule", news=news)
            here, there = (stack.enter_context(schedules.served(data)) for _ in range(2))
            consumers = _consumers(here, "push", stack)

            def run() -> list[float]:
                created = pool.submit(_live, there.clients[0], count)
                arrivals = Intake(consumers, count).run()
                created.result()
                return [arrival.late_ms for arrival in arrivals]

            return Side(name, run)

        yield [side("ours", "notify"), side("ours, without NOTIFY", "look")]


def _parameters(**more: object) -> dict[str, object]:
    return {
        "body bytes": len(schedules.body()),
        "due": f"{_A_SECOND} a second for {_SECONDS} s",
        "connections": "server and consumer are processes of one machine; messages are deleted in batches",
        "warm-up": "1 round",
        **more,
    }


def _row(engine: str, way: str) -> Row:
    return Row(
        f"schedule, lateness, {engine}, {way}",
        _parameters(created="before the first is due"),
        lambda directory, scale: _sides(directory, scale, engine, way),
        Target(p99_ms=25),
    )


ROWS = [
    *(_row(engine, way) for engine in databases.ENGINES for way in ("push", "pull")),
    Row(
        "schedule, lateness from another node, PostgreSQL, push",
        _parameters(created=f"when due, by another node, {_A_SECOND * _PACE_S:g} at a time"),
        _sides_of_two_nodes,
        Target(p99_ms=25),
    ),
]
