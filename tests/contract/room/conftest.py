"""The log room, in process and over HTTP: every test in this directory runs on both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from services import Server
from strandline import EventType
from strandline.log import Log

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The data directory of each room."""
    return {kind: tmp_path_factory.mktemp(kind) / "data" for kind in ("embedded", "http")}


@pytest.fixture(scope="session")
def embedded(directories: dict[str, Path]) -> Iterator[Log]:
    with strandline.open(directories["embedded"]) as platform:
        yield platform.log


@pytest.fixture(scope="session")
def server_url(directories: dict[str, Path]) -> Iterator[str]:
    with Server(directories["http"], logs_level="warning") as server:
        yield server.url


@pytest.fixture(scope="session")
def http(server_url: str) -> Iterator[Log]:
    with strandline.connect(server_url, timeout=30) as remote:
        yield remote.log


@pytest.fixture(params=["embedded", "http"])
def log(request: pytest.FixtureRequest) -> Log:
    return request.getfixturevalue(request.param)


@pytest.fixture
def data(request: pytest.FixtureRequest, log: Log, directories: dict[str, Path]) -> Path:
    """The data directory of the room under test."""
    return directories[request.node.callspec.params["log"]]


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"room.test-{next(_numbers)}"


@pytest.fixture
def orders(log: Log, name: str) -> str:
    """An event type of three partitions; the key of an event decides its partition."""
    log.create(EventType(name, partitions=3, partition_strategy="hash", partition_key_fields=("id",)))
    return name
