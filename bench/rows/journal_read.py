"""Reads of journals: a long one, and a short one when replication is in step and when it is behind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path

import strandline
from bench import databases, journals
from bench.databases import Database
from bench.journals import TOPIC, Eventsourced
from bench.runner import Row, Scale, Side, Target
from strandline.platform import Platform

_LONG = 100_000
_SHORT = 10
_JOURNALS = 1_000
_BEHIND = 10_000
_READS = 2_000
_PEER_BATCH = 1_000


def _platform(directory: Path, store: Database, stack: ExitStack) -> Platform:
    """One partition, so that all records that are not replicated are in the partition that is read."""
    platform = stack.enter_context(strandline.open(store.prepare(directory / "ours", "journal")))
    platform.journals.create(TOPIC, partitions=1)
    return platform


def _replicate(platform: Platform) -> None:
    platform.journals.replicators.process().once()


# -- a long journal


@contextmanager
def _long(directory: Path, scale: Scale, engine: str) -> Iterator[list[Side]]:
    events, entity = scale.of(_LONG), uuid.uuid4()
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        platform = _platform(directory, store, stack)
        journals.fill(platform.journals, TOPIC, [str(entity)], events)
        _replicate(platform)
        recorder = Eventsourced(store, directory / "peer")
        stack.callback(recorder.close)
        for first in range(1, events + 1, _PEER_BATCH):
            recorder.append(entity, first, min(_PEER_BATCH, events + 1 - first))

        def ours() -> int:
            return sum(1 for _ in platform.journal(TOPIC).read(str(entity)))

        yield [
            Side("ours", ours, store.own_cpu),
            Side(journals.PEER, lambda: recorder.read(entity), store.own_cpu),
        ]


def _long_row(engine: str) -> Row:
    return Row(
        f"journal, read {_LONG:,} events, {engine}",
        {
            "event bytes": len(journals.bodies()[0]),
            "journal": "replicated; ours streams, the peer returns a list",
            "connections": "1 thread, in process",
            "warm-up": "1 round",
        },
        lambda directory, scale: _long(directory, scale, engine),
        Target(rate=200_000),
    )


# -- short journals


@contextmanager
def _short(directory: Path, scale: Scale, engine: str, behind: int) -> Iterator[list[Side]]:
    entities = [str(uuid.uuid4()) for _ in range(_JOURNALS)]
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        platform = _platform(directory, store, stack)
        journals.fill(platform.journals, TOPIC, entities, _SHORT)
        _replicate(platform)
        if behind:
            journals.fill(platform.journals, TOPIC, [str(uuid.uuid4()) for _ in range(behind)], 1)
        journal, reads, places = platform.journal(TOPIC), scale.of(_READS), cycle(entities)
        topic, kept = platform.journals.topic(TOPIC), platform.journals.store()

        def ours() -> int:
            return sum(1 for entity in islice(places, reads) for _ in journal.read(entity)) // _SHORT

        def parts() -> int:
            found = 0
            for entity in islice(places, reads):
                platform.journals.action_log.raw.end(TOPIC, 0)
                with kept.open(topic.id, 0, entity) as opened:
                    found += sum(1 for _ in opened.rows(1, _SHORT))
            return found // _SHORT

        yield [Side("ours", ours, store.own_cpu), Side("the mark and the query alone", parts, store.own_cpu)]


def _short_row(engine: str, behind: int) -> Row:
    state = f"{behind:,} records behind" if behind else "in step"
    return Row(
        f"journal, read {_SHORT} events, {engine}, replication {state}",
        {
            "event bytes": len(journals.bodies()[0]),
            "journals": _JOURNALS,
            "what is counted": "reads",
            "connections": "1 thread, in process",
            "warm-up": "1 round",
        },
        lambda directory, scale: _short(directory, scale, engine, behind),
        None if behind else Target(ratio=0.33),
    )


ROWS = [
    *map(_long_row, databases.ENGINES),
    *(_short_row(engine, behind) for engine in databases.ENGINES for behind in (0, _BEHIND)),
]
