"""A second process that uses a storage: `worker.py <address> <act> <argument>…`; prints one line per answer."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from strandline.errors import StrandlineError
from strandline.log.records import NewRecords
from strandline.log.storage import Fence, Storage, topic_file
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


def churn(storage: Storage, topic: str, prefix: str, count: str) -> None:
    """Like `append`, to partitions 0 and 1 in turn, and compact after a few appends."""
    topic_file._MANY_SMALL, topic_file._FEW_SMALL = 8, 2
    for number in range(int(count)):
        append_one(storage, topic, number % 2, f"{prefix}-{number}")


def compact(storage: Storage, topic: str) -> None:
    """Append to both partitions, then compact everything."""
    for number in range(20):
        append_one(storage, topic, number % 2, f"new-{number}")
    for _ in storage._compact(topic, True):
        pass
    say("compacted")


def append_one(storage: Storage, topic: str, partition: int, value: str) -> None:
    placed = storage.append(topic, {partition: NewRecords(1_700_000_000_000, [value.encode()])}).result()
    say(partition, placed[partition].offsets[0], value)


def fenced(storage: Storage, topic: str, epoch: str, value: str) -> None:
    """Raise a fence, append the value under it, and print its offset or the name of the error."""
    fence = Fence("relay", int(epoch))
    storage.raise_fence(topic, fence)
    say("raised")
    try:
        placed = storage.append_fenced(topic, {0: NewRecords(1_700_000_000_000, [value.encode()])}, fence).result()
    except StrandlineError as error:
        say(type(error).__name__)
    else:
        say(placed[0].offsets[0])


ACTS = {act.__name__: act for act in (append, seal, create, churn, compact, fenced)}


def main(address: str, act: str, *arguments: str) -> None:
    kind, _, where = address.partition(":")
    storage: Storage = SqliteStorage(Path(where)) if kind == "sqlite" else KafkaStorage(where, {})
    ACTS[act](storage, *arguments)
    storage.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
