"""How long a switch holds publishers: for each switch and publisher, the slowest publish that overlapped it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import strandline
from bench import data
from bench.rows.append import PARTITIONS
from bench.runner import Row, Scale, Side, Target
from bench.services import Broker, PostgresServer, Server, ZookeeperServer
from strandline.log import Log
from strandline.log.model import StorageInfo
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration

_NODES = 2
_PUBLISHERS = 4
_SWITCHES = 25
_APART_SECONDS = 0.1

_Span = tuple[float, float]
#: Starts the services of the nodes, writes their settings, and returns the storages to switch between.
_Place = Callable[[Path, ExitStack], Sequence[StorageInfo]]


def _embedded(_: Path, __: ExitStack) -> Sequence[StorageInfo]:
    return [
        StorageInfo(name, "sqlite", sqlite_configuration=SqliteConfiguration(name)) for name in ("one", "other")
    ]


def _production(directory: Path, stack: ExitStack) -> Sequence[StorageInfo]:
    (directory / "data").mkdir()
    postgres = stack.enter_context(PostgresServer(directory))
    zookeeper = stack.enter_context(ZookeeperServer(directory / "zookeeper"))
    (directory / "data" / "strandline.toml").write_text(
        f'[catalog]\nurl = "{postgres.url(postgres.new_database())}"\n'
        f'[coordination]\nurl = "zookeeper://{zookeeper.hosts}/bench"\n'
    )
    brokers = {name: stack.enter_context(Broker(directory / name)) for name in ("one", "other")}
    return [
        StorageInfo(name, "kafka", kafka_configuration=KafkaConfiguration(broker.bootstrap_servers))
        for name, broker in brokers.items()
    ]


@contextmanager
def _sides(directory: Path, scale: Scale, place: _Place) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        storages = place(directory, stack)
        nodes = [stack.enter_context(Server(directory / "data", logs_level="warning")) for _ in range(_NODES)]
        logs = [stack.enter_context(strandline.connect(node.url, timeout=60)).log for node in nodes]
        for storage in storages:
            logs[0].admin.add_storage(storage)
        logs[0].admin.set_default_storage(storages[-1].id)
        logs[0].create(strandline.EventType("orders", partitions=PARTITIONS))
        turns = zip(itertools.cycle(logs), itertools.cycle(storage.id for storage in storages), strict=False)

        def ours() -> list[float]:
            return _pauses([logs[n % _NODES] for n in range(_PUBLISHERS)], turns, scale.of(_SWITCHES))

        yield [Side("ours", ours)]


def _pauses(publishers: Sequence[Log], turns: Iterator[tuple[Log, str]], count: int) -> list[float]:
    """All publishers publish, one event after the other, while the event type switches between storages."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(publishers)) as pool:
        publishing = [pool.submit(_publish, log, stop) for log in publishers]
        try:
            switches = [_switch(log, storage, stop) for log, storage in itertools.islice(turns, count)]
        finally:
            stop.set()
    return [_slowest(switch, spans.result()) for switch in switches for spans in publishing]


def _publish(log: Log, stop: threading.Event) -> list[_Span]:
    spans = []
    (event,) = data.values(1)
    while not stop.is_set():
        begin = time.monotonic()
        log.publish("orders", [event]).raise_for_failed()
        spans.append((begin, time.monotonic()))
    return spans


def _switch(log: Log, storage: str, stop: threading.Event) -> _Span:
    stop.wait(_APART_SECONDS)
    begin = time.monotonic()
    log.admin.switch("orders", storage)
    return begin, time.monotonic()


def _slowest(switch: _Span, publishes: Sequence[_Span]) -> float:
    """In milliseconds. Fails if no publish overlapped the switch: that is not a short wait."""
    begin, end = switch
    return max((ended - began) * 1000 for began, ended in publishes if began < end and ended > begin)


def _row(name: str, place: _Place, **parameters: str) -> Row:
    return Row(
        f"publisher pause by a switch, {name}",
        {
            "event bytes": data.mean_size(data.values(1)),
            "partitions": PARTITIONS,
            "batch": 1,
            "connections": f"{_PUBLISHERS} publishers of {_NODES} nodes",
            "warm-up": "1 round",
            "switches": f"{_SWITCHES} a round, {_APART_SECONDS:g} s apart, by either node in turn",
            **parameters,
        },
        lambda directory, scale: _sides(directory, scale, place),
        Target(p99_ms=250),
    )


ROWS = [
    _row("SQLite", _embedded, storages="two SQLite", catalog="SQLite", coordination="SQLite"),
    _row(
        "ZooKeeper and Kafka", _production, storages="two Kafkas", catalog="PostgreSQL", coordination="ZooKeeper"
    ),
]
