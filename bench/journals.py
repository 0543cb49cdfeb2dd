"""Journals under test, and their peer: the recorders of the library `eventsourcing`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bench import data
from bench.databases import Database
from bench.queues import fetch
from strandline.journal import payloads
from strandline.journal.local import LocalJournals
from strandline.journal.model import Append, NewEvent, Payload
from strandline.log.raw import RawTopic

TOPIC = "bench"
PEER = "eventsourcing"
_WRITTEN_AT_ONCE = 5_000


@cache
def bodies() -> list[bytes]:
    return data.values(1000)


def event(number: int, seq_nr: int | None = None) -> NewEvent:
    return NewEvent(Payload("json", bodies()[number % 1000]), (), seq_nr)


def fill(journals: LocalJournals, name: str, entities: Sequence[str], events: int) -> None:
    """Write the actions as appends of one event: seqNr 1 of every journal, then seqNr 2 of every journal, …"""
    topic = journals.topic(name)
    by_partition: dict[int, list[str]] = {}
    for entity in entities:
        by_partition.setdefault(journals.action_log.partition(topic, entity), []).append(entity)
    for partition, own in by_partition.items():
        all_of_it = ((entity, seq_nr) for seq_nr in range(1, events + 1) for entity in own)
        _write(journals, topic, partition, all_of_it)


def _write(journals: LocalJournals, topic: RawTopic, partition: int, appends: Any) -> None:
    waiting = []
    for number, (entity, seq_nr) in enumerate(appends):
        encoding, value = payloads.encode([event(number, seq_nr)])
        waiting.append((entity, Append(seq_nr, seq_nr, encoding), value))
        if len(waiting) == _WRITTEN_AT_ONCE:
            journals.action_log.write(topic, partition, waiting)
            waiting = []
    if waiting:
        journals.action_log.write(topic, partition, waiting)


# -- the peer


class Eventsourced:
    """A recorder of an application, which stores events that are already serialized, one row each.

    On SQLite its connections use WAL and `synchronous=FULL`. On PostgreSQL `synchronous_commit` is on.
    """

    def __init__(self, store: Database, folder: Path) -> None:
        package = str(fetch.eventsourcing())
        if package not in sys.path:
            sys.path.append(package)
        from eventsourcing.persistence import StoredEvent  # noqa: PLC0415 - fetched

        self._event = StoredEvent
        self._recorder, self._datastore = _recorder(store, folder)
        self._recorder.create_table()

    def append(self, entity: uuid.UUID, first: int, count: int = 1) -> None:
        """One commit."""
        stored = [
            self._event(entity, first + n, "bench:Ordered", bodies()[(first + n) % 1000]) for n in range(count)
        ]
        self._recorder.insert_events(stored)

    def read(self, entity: uuid.UUID) -> int:
        return len(self._recorder.select_events(entity))

    def close(self) -> None:
        self._datastore.close()


def _recorder(store: Database, folder: Path) -> tuple[Any, Any]:
    if store.server is None:
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore  # noqa: PLC0415 - fetched

        folder.mkdir(parents=True)
        files = SQLiteDatastore(str(folder / "peer.db"), pool_size=16, max_overflow=16)
        return SQLiteApplicationRecorder(files), files
    from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore  # noqa: PLC0415 - fetched

    at = urlsplit(store.server.url(store.server.new_database()))
    server = PostgresDatastore(
        at.path[1:],
        at.hostname or "",
        str(at.port),
        at.username or "",
        unquote(at.password or ""),
        pool_size=16,
        max_overflow=16,
    )
    return PostgresApplicationRecorder(server, events_table_name="stored_events"), server
