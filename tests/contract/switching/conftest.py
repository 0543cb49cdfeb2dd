"""Nodes that share a catalog and two storages, over every set of engines. Only tests advance the clock."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from switching_place import DELAY_MS, Opener

from strandline.clock import ManualClock
from strandline.coordination.settings import CoordinationSettings
from strandline.log import StorageInfo
from strandline.log.settings import CatalogSettings, LogSettings
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration
from strandline.platform import Platform
from strandline.settings import Settings


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "sqlite, kafka", "postgres, kafka"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Opener]:
    """A function that opens another node; `first` and `second` are storages, the first is the default."""
    settings = Settings(log=LogSettings(cleanup_delay_ms=DELAY_MS))
    if request.param.startswith("postgres"):
        postgres, zookeeper = request.getfixturevalue("postgres"), request.getfixturevalue("zookeeper")
        settings = Settings(
            log=settings.log,
            catalog=CatalogSettings(postgres.url(postgres.new_database())),
            coordination=CoordinationSettings(f"zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}"),
        )
    platforms: list[Platform] = []

    def one_more() -> Platform:
        platforms.append(Platform(tmp_path, settings, clock))
        # PostgreSQL measures delays on the clock of the server, which a test cannot advance.
        platforms[-1].log._catalog._tables._now = clock.now_ms
        return platforms[-1]

    admin = one_more().log.admin
    for name in ("first", "second"):
        if request.param == "sqlite":
            admin.add_storage(StorageInfo(name, "sqlite", sqlite_configuration=SqliteConfiguration(name)))
        else:
            servers = request.getfixturevalue("kafka").bootstrap_servers
            configuration = KafkaConfiguration(servers, {"client.id": name})
            admin.add_storage(StorageInfo(name, "kafka", kafka_configuration=configuration))
    admin.set_default_storage("first")
    yield one_more
    for platform in platforms:
        platform.close()
