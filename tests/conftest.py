"""Real services, each started at most once per test run; tests keep apart by names."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hdfs_cluster import HdfsCluster, running_hdfs
from kafka_broker import Broker, running_broker
from postgres_server import PostgresServer, running_postgres
from s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3
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


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """The one HDFS of a test run; tests keep apart by folders."""
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The one S3 server of a test run; tests keep apart by prefixes. Its keys are in the environment meanwhile."""
    with pytest.MonkeyPatch.context() as patch, running_s3(tmp_path_factory.mktemp("s3")) as server:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield server
