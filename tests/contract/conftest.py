"""What the contract suites share: the engines of a SQL adapter, and the rooms in process and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from services import Server
from strandline.client import Remote
from strandline.platform import Platform


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database: every test that asks for it runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'store.db'}"
    server = request.getfixturevalue("postgres")
    return str(server.url(server.new_database()))


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with strandline.open(tmp_path_factory.mktemp("local") / "data") as platform:
        yield platform


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("http") / "data", logs_level="warning") as server:
        yield server.url


@pytest.fixture(scope="session")
def http(server_url: str) -> Iterator[Remote]:
    with strandline.connect(server_url, timeout=30) as remote:
        yield remote


@pytest.fixture(params=["local", "http"])
def rooms(request: pytest.FixtureRequest) -> Platform | Remote:
    """The rooms: every test that asks for them runs in process and over HTTP. Tests use names of their own."""
    return request.getfixturevalue(request.param)
