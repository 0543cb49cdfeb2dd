"""Appends of one event to journals, by one writer and by many: a commit of the log for each append."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import strandline
from bench import databases, journals
from bench.journals import Eventsourced
from bench.runner import Row, Scale, Side, Target
from strandline.journal import Journal

_SECONDS = 1.0
_PARTITIONS = 4
_EVENTS_PER_JOURNAL = 100
#: Appends one event.
_Append = Callable[[], object]


def _in_threads(pool: ThreadPoolExecutor, seconds: float, appends: Sequence[_Append]) -> int:
    """All writers begin together, and each goes on until the time is over."""
    start = threading.Barrier(len(appends))

    def write(append: _Append) -> int:
        start.wait()
        deadline, done = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            append()
            done += 1
        return done

    return sum(pool.map(write, appends))


def _places() -> Iterator[tuple[uuid.UUID, int]]:
    """Journals one after the other, and in each the seqNrs from 1."""
    while True:
        entity = uuid.uuid4()
        for seq_nr in range(1, _EVENTS_PER_JOURNAL + 1):
            yield entity, seq_nr


def _ours(journal: Journal, *, expected: bool) -> _Append:
    places, numbers = _places(), count()

    def append() -> object:
        entity, seq_nr = next(places)
        if expected:
            return journal.append(str(entity), [journals.event(next(numbers))], expected=seq_nr - 1)
        return journal.append(str(entity), [journals.event(next(numbers), seq_nr)])

    return append


def _peer(recorder: Eventsourced) -> _Append:
    places = _places()
    return lambda: recorder.append(*next(places))


@contextmanager
def _sides(directory: Path, scale: Scale, engine: str, writers: int, *, expected: bool) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        platform = stack.enter_context(strandline.open(store.prepare(directory / "ours", "journal")))
        platform.journals.create(journals.TOPIC, partitions=_PARTITIONS)
        recorder = Eventsourced(store, directory / "peer")
        stack.callback(recorder.close)
        pool = stack.enter_context(ThreadPoolExecutor(writers))
        seconds = max(0.2, _SECONDS * scale.share)

        def side(name: str, appends: Sequence[_Append]) -> Side:
            return Side(name, lambda: _in_threads(pool, seconds, appends), store.own_cpu)

        journal = platform.journal(journals.TOPIC)
        yield [
            side("ours", [_ours(journal, expected=expected) for _ in range(writers)]),
            side(journals.PEER, [_peer(recorder) for _ in range(writers)]),
        ]


def _row(engine: str, writers: int, *, expected: bool) -> Row:
    return Row(
        f"journal, append, {engine}, {'expected' if expected else 'plain'}, "
        f"{writers} writer{'s' if writers > 1 else ''}",
        {
            "event bytes": len(journals.bodies()[0]),
            "partitions": _PARTITIONS,
            "events in a journal": _EVENTS_PER_JOURNAL,
            "writers": f"{writers} threads in process, each with journals of its own",
            "warm-up": "1 round",
            "durability": "ours: fsync of the log (SQLite); the peer: fsync of its database",
        },
        lambda directory, scale: _sides(directory, scale, engine, writers, expected=expected),
        Target(ratio=3.0 if writers > 1 else 0.9),
    )


ROWS = [
    _row(engine, writers, expected=expected)
    for engine in databases.ENGINES
    for writers in (1, 16)
    for expected in (False, True)
]
