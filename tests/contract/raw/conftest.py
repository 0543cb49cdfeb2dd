"""A node with two storages of one engine, and an event type that holds actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.clock import ManualClock
from strandline.log import StorageInfo
from strandline.log.raw import RawLog
from strandline.log.settings import LogSettings
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration
from strandline.platform import Platform
from strandline.settings import Settings


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "kafka"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def opened(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[Callable[[], Platform]]:
    """A function that opens another node; `first` and `second` are storages, the first is the default."""
    platforms: list[Platform] = []

    def one_more() -> Platform:
        platforms.append(Platform(tmp_path, Settings(log=LogSettings(cleanup_delay_ms=0)), clock))
        return platforms[-1]

    admin = one_more().log.admin
    for name in ("first", "second"):
        if engine == "sqlite":
            admin.add_storage(StorageInfo(name, "sqlite", sqlite_configuration=SqliteConfiguration(name)))
        else:
            configuration = KafkaConfiguration(
                request.getfixturevalue("kafka").bootstrap_servers, {"client.id": name}
            )
            admin.add_storage(StorageInfo(name, "kafka", kafka_configuration=configuration))
    admin.set_default_storage("first")
    yield one_more
    for platform in platforms:
        platform.close()


@pytest.fixture
def platform(opened: Callable[[], Platform]) -> Platform:
    return opened()


@pytest.fixture
def raw(platform: Platform) -> RawLog:
    return platform.log.raw
