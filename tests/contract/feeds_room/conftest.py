"""The feeds room, in process and over HTTP: every test in this directory that asks for `feeds` runs on both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

import strandline
from services import Server
from strandline.client import Remote
from strandline.feeds import Feeds
from strandline.platform import Platform

_numbers = itertools.count(1)


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
    return request.getfixturevalue(request.param)


@pytest.fixture
def feeds(rooms: Platform | Remote) -> Feeds:
    return rooms.feeds


@pytest.fixture
def new() -> Callable[[], str]:
    """Names that no other test uses."""
    return lambda: f"user:{next(_numbers)}"


@pytest.fixture
def feed(feeds: Feeds, new: Callable[[], str]) -> str:
    """A feed that exists and is empty."""
    name = new()
    feeds.set(name, [])
    return name
