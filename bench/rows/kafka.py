"""Appending encoded values to Kafka: through the storage, and with the driver alone, same settings and broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from bench import data
from bench.rows.append import NOW_MS, PARTITIONS, split
from bench.runner import Row, Scale, Side, Target
from strandline.engine.kafka import Connection
from strandline.log.records import NewRecords
from strandline.log.storage.kafka import KafkaStorage

_BATCH = 1000
_APPENDS = 200
_Batches = Sequence[dict[int, Sequence[bytes]]]


@contextmanager
def _sides(directory: Path, scale: Scale) -> Iterator[list[Side]]:
    values = data.values(50 * _BATCH)
    batches = [split(values[at : at + _BATCH]) for at in range(0, len(values), _BATCH)]
    ready = [{p: NewRecords(NOW_MS, part) for p, part in parts.items()} for parts in batches]
    count = scale.of(_APPENDS)
    # Imported here: only this row needs the tests' helpers on the path, which `make bench` puts there.
    from kafka_broker import running_broker  # noqa: PLC0415

    (directory / "kafka").mkdir()
    with running_broker(directory / "kafka") as broker:
        storage = KafkaStorage(broker.bootstrap_servers, {})
        for topic in ("ours", "produce", "batch"):
            storage.create_topic(topic, PARTITIONS, 86_400_000)
        raw = Connection(broker.bootstrap_servers).producer(message_bytes=2_000_000, delivery_timeout_ms=20_000)

        def ours() -> int:
            futures = [storage.append("ours", parts) for parts in itertools.islice(itertools.cycle(ready), count)]
            _insist(all(part.complete for future in futures for part in future.result().values()))
            return count * _BATCH

        yield [
            Side("ours", ours),
            Side("produce, a callback per record", lambda: _produce(raw, batches, count)),
            Side("produce_batch, no timestamps, no callbacks", lambda: _produce_batch(raw, batches, count)),
        ]
        storage.close()


def _produce(producer: Producer, batches: _Batches, count: int) -> int:
    offsets: list[int | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        _insist(error is None)
        offsets.append(message.offset())

    def send(partition: int, values: Sequence[bytes]) -> None:
        for value in values:
            producer.produce("produce", value, None, partition, delivered, None, NOW_MS)

    _send_all(producer, batches, count, send)
    _insist(len(offsets) == count * _BATCH)
    return len(offsets)


def _produce_batch(producer: Producer, batches: _Batches, count: int) -> int:
    def send(partition: int, values: Sequence[bytes]) -> None:
        taken = producer.produce_batch("batch", [{"value": value} for value in values], partition)
        _insist(taken == len(values))

    _send_all(producer, batches, count, send)
    return count * _BATCH


def _send_all(
    producer: Producer, batches: _Batches, count: int, send: Callable[[int, Sequence[bytes]], None]
) -> None:
    for parts in itertools.islice(itertools.cycle(batches), count):
        for partition, values in parts.items():
            send(partition, values)
        producer.poll(0)
    _insist(not producer.flush(60))


def _insist(stored: bool) -> None:
    if not stored:
        raise RuntimeError("not every record was stored")


ROWS = [
    Row(
        f"Kafka append, {_BATCH} a batch",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": PARTITIONS,
            "batch": _BATCH,
            "connections": "1 thread, broker on the same machine",
            "warm-up": "1 round",
            "durability": "acks=all, idempotent, lz4, 1 replica",
        },
        _sides,
        Target(ratio=0.7),
    )
]
