"""A second process that uses a storage: `worker.py <address> <act> <argument>…`; prints one line per answer."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from strandline.log.records import NewRecords
from strandline.log.storage import Storage
from strandline.log.storage.kafka import KafkaStorage
from strandline.log.storage.sqlite import SqliteStorage


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - this is how it answers


def append(storage: Storage, topic: str, partition: str, prefix: str, count: str) -> None:
    """Append records one by one (indefinitely if `count` is 0) and print a line for each acknowledged record."""
    for number in range(int(count)) if int(count) else itertools.count():
        value = f"{prefix}-{number}"
        placed = storage.append(topic, {int(partition): NewRecords(number, [value.encode()])}).result()
        say(placed[int(partition)].offsets[0], value)


def seal(storage: Storage, topic: str, token: str) -> None:
    storage.seal(topic, token)
    say("sealed")


def create(storage: Storage, topic: str, partitions: str) -> None:
    """Print that the process is ready, wait for a line, then create the topic."""
    say("ready")
    sys.stdin.readline()
    storage.create_topic(topic, int(partitions), 86_400_000)
    say("created")


ACTS = {act.__name__: act for act in (append, seal, create)}


def main(address: str, act: str, *arguments: str) -> None:
    kind, _, where = address.partition(":")
    storage: Storage = SqliteStorage(Path(where)) if kind == "sqlite" else KafkaStorage(where, {})
    ACTS[act](storage, *arguments)
    storage.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
