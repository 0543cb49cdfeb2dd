"""Every contract test of the journal's store runs on SQLite, PostgreSQL and Cassandra."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_place import JournalPlace

from services.cassandra import CassandraServer
from strandline.journal.storage import JournalStore


@pytest.fixture(params=["sqlite", "postgres", "cassandra"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalPlace]:
    if request.param == "sqlite":
        opened = JournalPlace(f"sqlite:{tmp_path / 'journal.db'}")
    elif request.param == "cassandra":
        server = request.getfixturevalue("cassandra")
        opened = JournalPlace(f"{server.url(request.getfixturevalue('keyspace'))}#{uuid.uuid4()}")
    else:
        server = request.getfixturevalue("postgres")
        opened = JournalPlace(server.url(server.new_database()))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def keyspace(cassandra: CassandraServer) -> str:
    return cassandra.new_keyspace()


@pytest.fixture
def store(place: JournalPlace) -> JournalStore:
    return place.open()
