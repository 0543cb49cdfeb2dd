"""Real services, each started at most once per test run; tests keep apart by names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_broker import Broker, running_broker
from postgres_server import PostgresServer, running_postgres
from zookeeper_server import ZookeeperServer, running_zookeeper


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one broker of a test run; a test that hurts it brings it back."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """The one server of a test run; tests keep apart by their roots, and one that hurts it brings it back."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The one PostgreSQL of a test run, with a database for every test; who hurts it brings it back."""
    with running_postgres() as server:
        yield server
