"""Real services, each started at most once per test run. Tests use different names, so they do not collide."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from services.cassandra import CassandraServer
from services.hdfs import HdfsCluster
from services.kafka import Broker
from services.postgres import PostgresServer
from services.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from services.valkey import ValkeyCluster, ValkeyServer
from services.zookeeper import ZookeeperServer

# The time that an example takes depends on the machine, so no deadline is set.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A shell starts background jobs with SIGINT ignored, which the commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one broker of a test run. A test that kills or pauses it calls `bring_back`."""
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """The one ZooKeeper of a test run; every test has its own root. Call `bring_back` after `kill` or `pause`."""
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The PostgreSQL of a test run; every test has its own database. Call `bring_back` after `kill` or `pause`."""
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        _POSTGRES.append(server)
        yield server


_POSTGRES: list[PostgresServer] = []


@pytest.fixture(autouse=True)
def _no_databases_are_left() -> Iterator[None]:
    """Drop the databases of the test: each has 300 files, and to delete those of all tests takes ten minutes."""
    before = [name for server in _POSTGRES for name in server.databases]
    yield
    for server in _POSTGRES:
        server.drop([name for name in server.databases if name not in before])


@pytest.fixture(scope="session")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraServer]:
    """The Cassandra of a test run; every test has its own topics. Call `bring_back` after `kill` or `pause`."""
    with CassandraServer(tmp_path_factory.mktemp("cassandra")) as server:
        yield server


@pytest.fixture(scope="session")
def journal_keyspace(cassandra: CassandraServer) -> str:
    """The address of a keyspace that tests of journals share: to create tables takes seconds."""
    return cassandra.url(cassandra.new_keyspace())


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """The one Valkey of a test run; tests use different keys. Call `bring_back` after `kill` or `pause`."""
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    """The one Valkey Cluster of a test run; tests use different keys. Call `bring_back` after a failover."""
    with ValkeyCluster(tmp_path_factory.mktemp("valkey-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """The one HDFS of a test run; every test has its own folder."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The one S3 server of a test run; every test has its own prefix. The access keys are in the environment."""
    with pytest.MonkeyPatch.context() as patch, S3Server(tmp_path_factory.mktemp("s3")) as server:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield server
