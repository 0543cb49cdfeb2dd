"""Fan-outs over their engines: SQLite alone, or feeds in Valkey with the tables in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandline
from social_network import Network, create
from strandline.feeds.fanout.delivery import STORES
from strandline.log.ranges import close_storages
from strandline.platform import Platform


@pytest.fixture(params=["sqlite", "valkey, postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Platform]]:
    """Opens nodes over the same data."""
    data = tmp_path / "data"
    data.mkdir()
    settings = "[coordination]\nsession_timeout_ms = 1000\n[feeds]\nrecord = false\n"
    if "valkey" in request.param:
        valkey, postgres = request.getfixturevalue("valkey"), request.getfixturevalue("postgres")
        valkey.flush()
        settings += f'url = "{valkey.url}"\ndatabase_url = "{postgres.url(postgres.new_database())}"\n'
    (data / "strandline.toml").write_text(settings)
    platforms: list[Platform] = []

    def one_more() -> Platform:
        platforms.append(strandline.open(data))
        return platforms[-1]

    yield one_more
    STORES.close()
    close_storages()
    for platform in platforms:
        platform.close()


@pytest.fixture
def node(opened: Callable[[], Platform]) -> Platform:
    node = opened()
    create(node)
    return node


@pytest.fixture
def network(node: Platform) -> Network:
    """A small network whose users have home feeds."""
    made = Network(node)
    made.join()
    return made
