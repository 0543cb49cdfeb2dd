"""The journal room over its engines: `opened` opens nodes of one place, `journals` has one node open."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_node import Opener

from strandline.clock import ManualClock
from strandline.coordination.settings import CoordinationSettings
from strandline.journal.local import LocalJournal, LocalJournals
from strandline.journal.settings import JournalSettings
from strandline.log import StorageInfo
from strandline.log.settings import CatalogSettings
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration
from strandline.platform import Platform
from strandline.settings import Settings

_numbers = itertools.count(1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture(params=["sqlite", "kafka, postgres", "sqlite, cassandra"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Opener]:
    """Log and store. There are two storages, `first` and `second`; the first is the default."""
    url, sections = "", {}
    if "postgres" in request.param:
        postgres, zookeeper = request.getfixturevalue("postgres"), request.getfixturevalue("zookeeper")
        url = postgres.url(postgres.new_database())
        sections["catalog"] = CatalogSettings(postgres.url(postgres.new_database()))
        sections["coordination"] = CoordinationSettings(f"zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}")
    if "cassandra" in request.param:
        url = request.getfixturevalue("journal_keyspace")
    platforms: list[Platform] = []

    def one_more(**journal: int) -> Platform:
        settings = Settings(journal=JournalSettings(url, **journal), **sections)
        platforms.append(Platform(tmp_path, settings, clock))
        return platforms[-1]

    with one_more() as node:
        for name in ("first", "second"):
            if "kafka" in request.param:
                configuration = KafkaConfiguration(request.getfixturevalue("kafka").bootstrap_servers, {})
                node.log.admin.add_storage(StorageInfo(name, "kafka", kafka_configuration=configuration))
            else:
                configuration = SqliteConfiguration(name)
                node.log.admin.add_storage(StorageInfo(name, "sqlite", sqlite_configuration=configuration))
        node.log.admin.set_default_storage("first")
    yield one_more
    for platform in platforms:
        platform.close()


@pytest.fixture
def node(opened: Opener) -> Platform:
    return opened()


@pytest.fixture
def journals(node: Platform) -> LocalJournals:
    return node.journals


@pytest.fixture
def topic(journals: LocalJournals) -> str:
    """A topic of two partitions that no other test uses."""
    name = f"orders-{next(_numbers)}"
    journals.create(name, partitions=2)
    return name


@pytest.fixture
def journal(journals: LocalJournals, topic: str) -> LocalJournal:
    return journals.of(topic)
