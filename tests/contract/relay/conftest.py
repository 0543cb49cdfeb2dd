"""Relays over their engines: everything in SQLite files, or Kafka, PostgreSQL and ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from relay_place import Opener

import strandline
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.ranges import close_storages
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration
from strandline.platform import Platform
from strandline.schedule.relay.filling import STORES

_SHORT = "session_timeout_ms = 1000\n"


@pytest.fixture(params=["sqlite", "kafka, postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens nodes. There are two storages, `first` and `second`; the first is the default."""
    data = tmp_path / "data"
    data.mkdir()
    text = f"[coordination]\n{_SHORT}"
    if "postgres" in request.param:
        postgres, zookeeper = request.getfixturevalue("postgres"), request.getfixturevalue("zookeeper")
        url = postgres.url(postgres.new_database())
        text += f'url = "zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}"\n'
        text += f'[catalog]\nurl = "{url}"\n[schedule]\nurl = "{url}"\n'
    (data / "strandline.toml").write_text(text)
    platforms: list[Platform] = []

    def one_more() -> Platform:
        platforms.append(strandline.open(data))
        return platforms[-1]

    admin = one_more().log.admin
    for name in ("first", "second"):
        if "kafka" in request.param:
            configuration = KafkaConfiguration(
                request.getfixturevalue("kafka").bootstrap_servers, {"client.id": name}
            )
            admin.add_storage(StorageInfo(name, "kafka", kafka_configuration=configuration))
        else:
            admin.add_storage(StorageInfo(name, "sqlite", sqlite_configuration=SqliteConfiguration(name)))
    admin.set_default_storage("first")
    yield one_more
    STORES.close()
    close_storages()
    for platform in platforms:
        platform.close()


@pytest.fixture
def node(opened: Opener) -> Platform:
    node = opened()
    for name in ("orders", "later"):
        node.log.create(EventType(name, partitions=2))
    return node
