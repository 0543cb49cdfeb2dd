"""The clusters under test: embedded, with one storage on Kafka, on PostgreSQL and ZooKeeper, and with Kafka."""

import uuid
from contextlib import ExitStack, closing

import pytest
from cluster import Cluster, kafka_storage, sqlite_storage

from services.kafka import Broker


@pytest.fixture
def cluster(request, tmp_path):
    with ExitStack() as stack:
        storages = prepare(request, tmp_path, stack)
        yield stack.enter_context(closing(Cluster(tmp_path / "data", storages)))


def prepare(request, folder, stack: ExitStack) -> tuple[dict, ...]:
    """Start the services that the nodes need, write their settings, and return the storages to add."""
    if request.param == "embedded":
        return (sqlite_storage("other"),)
    if request.param == "kafka":
        return (kafka_storage("other", request.getfixturevalue("kafka")),)
    postgres, zookeeper = (request.getfixturevalue(name) for name in ("postgres", "zookeeper"))
    (folder / "data").mkdir()
    database = postgres.url(postgres.new_database())
    settings = (
        f'[catalog]\nurl = "{database}"\n'
        f'[coordination]\nurl = "zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}"\n'
        f'[journal]\nurl = "{database}"\n'
    )
    if request.param == "postgres":
        # Only here: a node whose clock is an hour off the schedule's database would not become ready.
        settings += f'[schedule]\nurl = "{database}"\n'
    (folder / "data" / "strandline.toml").write_text(settings)
    if request.param == "postgres":
        return ()
    kafka = second = request.getfixturevalue("kafka")
    if request.param == "two brokers":
        second = stack.enter_context(Broker(folder / "second"))
    return kafka_storage("default", kafka), kafka_storage("other", second)
