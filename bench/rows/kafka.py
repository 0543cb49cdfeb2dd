"""Events to Kafka: through the storage, the whole publish, or the driver alone; same settings and broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

import strandline
from bench import data
from bench.rows.append import NOW_MS, PARTITIONS, split
from bench.runner import Row, Scale, Side, Target
from bench.services import Broker
from strandline.engine.kafka import KafkaConnection
from strandline.log.model import StorageInfo
from strandline.log.records import NewRecords
from strandline.log.storage.kafka import KafkaStorage
from strandline.log.storage.registry import KafkaConfiguration

_BATCH = 1000
_BATCHES = 600
_KEPT_MS = 86_400_000
_Batches = Sequence[Sequence[bytes]]
#: Sends the batches without waiting in between, and returns when all are stored.
_Send = Callable[[_Batches], None]
#: Makes such a function for a broker; the stack closes what it opens.
_Ours = Callable[[str, Path, ExitStack], _Send]


def _storage(bootstrap_servers: str, _: Path, stack: ExitStack) -> _Send:
    storage = stack.enter_context(closing(KafkaStorage(bootstrap_servers, {})))
    storage.create_topic("ours", PARTITIONS, _KEPT_MS)

    def send(batches: _Batches) -> None:
        parts = [{p: NewRecords(NOW_MS, own) for p, own in split(batch).items()} for batch in batches]
        futures = [storage.append("ours", part) for part in parts]
        wait(futures)  # once for all: a wake-up for each of them takes time, too
        _insist(all(part.complete for future in futures for part in future.result().values()))

    return send


def _library(schema: strandline.Schema | None) -> _Ours:
    def ours(bootstrap_servers: str, directory: Path, stack: ExitStack) -> _Send:
        log = stack.enter_context(strandline.open(directory / "ours")).log
        configuration = KafkaConfiguration(bootstrap_servers)
        log.admin.add_storage(StorageInfo("kafka", "kafka", kafka_configuration=configuration))
        log.admin.set_default_storage("kafka")
        log.create(strandline.EventType("orders", partitions=PARTITIONS, **{"schema": schema} if schema else {}))

        def send(batches: _Batches) -> None:
            futures = [log.submit("orders", batch) for batch in batches]
            wait(futures)
            _insist(all(future.result().ok for future in futures))

        return send

    return ours


def _produce(producer: Producer) -> _Send:
    def send(batches: _Batches) -> None:
        offsets: list[int | None] = []
        produce = producer.produce

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                raise RuntimeError(error)
            offsets.append(message.offset())

        for batch in batches:
            for partition, values in split(batch).items():
                for value in values:
                    produce("produce", value, None, partition, delivered, None, NOW_MS)
            producer.poll(0)
        _insist(not producer.flush(60))
        _insist(len(offsets) == len(batches) * _BATCH)

    return send


def _produce_batch(producer: Producer) -> _Send:
    def send(batches: _Batches) -> None:
        for batch in batches:
            for partition, values in split(batch).items():
                taken = producer.produce_batch("batch", [{"value": value} for value in values], partition)
                _insist(taken == len(values))
            producer.poll(0)
        _insist(not producer.flush(60))

    return send


def _insist(stored: bool) -> None:
    if not stored:
        raise RuntimeError("not every record was stored")


@contextmanager
def _sides(directory: Path, scale: Scale, ours: _Ours) -> Iterator[list[Side]]:
    values = data.values(50 * _BATCH)
    fifty = [values[at : at + _BATCH] for at in range(0, len(values), _BATCH)]
    batches = [*itertools.islice(itertools.cycle(fifty), scale.of(_BATCHES))]

    def side(name: str, send: _Send) -> Side:
        def run() -> int:
            send(batches)
            return len(batches) * _BATCH

        return Side(name, run)

    with ExitStack() as stack:
        (directory / "kafka").mkdir()
        broker = stack.enter_context(Broker(directory / "kafka")).bootstrap_servers
        peers = stack.enter_context(closing(KafkaStorage(broker, {})))
        for topic in ("produce", "batch"):
            peers.create_topic(topic, PARTITIONS, _KEPT_MS)
        raw = KafkaConnection(broker).producer(message_bytes=2_000_000, delivery_timeout_ms=20_000)
        yield [
            side("ours", ours(broker, directory, stack)),
            side("produce, with a delivery callback", _produce(raw)),
            side("produce_batch, no timestamps, no callbacks", _produce_batch(raw)),
        ]


def _row(name: str, ours: _Ours, target: Target | None, **parameters: str) -> Row:
    return Row(
        f"{name}, {_BATCH} a batch",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": PARTITIONS,
            "batch": _BATCH,
            "connections": "1 thread, in process, all batches on their way at once, broker on the same machine",
            "warm-up": "1 round",
            "durability": "acks=all, idempotent, lz4, 1 replica",
            **parameters,
        },
        lambda directory, scale: _sides(directory, scale, ours),
        target,
    )


ROWS = [
    _row("Kafka append", _storage, Target(ratio=0.7)),
    _row("publish to Kafka", _library(None), Target(ratio=0.7), schema="none"),
    _row(
        "publish to Kafka with a schema",
        _library(strandline.Schema.json(data.SCHEMA)),
        None,
        schema=f"{len(data.SCHEMA['properties'])} properties",
    ),
]
