"""The clusters that are disturbed: embedded, beside Kafka, and on PostgreSQL, ZooKeeper and a broker or two."""

import uuid
from contextlib import ExitStack, closing

import pytest
from cluster import Cluster, kafka_storage, sqlite_storage

from kafka_broker import running_broker


@pytest.fixture
def cluster(request, tmp_path):
    with ExitStack() as stack:
        storages = prepare(request, tmp_path, stack)
        yield stack.enter_context(closing(Cluster(tmp_path / "data", storages)))


def prepare(request, folder, stack: ExitStack) -> tuple[dict, ...]:
    """Start what the nodes need and write their settings; the storages to add."""
    if request.param == "embedded":
        return (sqlite_storage("other"),)
    kafka = request.getfixturevalue("kafka")
    if request.param == "kafka":
        return (kafka_storage("other", kafka),)
    postgres, zookeeper = (request.getfixturevalue(name) for name in ("postgres", "zookeeper"))
    (folder / "data").mkdir()
    (folder / "data" / "strandline.toml").write_text(
        f'[catalog]\nurl = "{postgres.url(postgres.new_database())}"\n'
        f'[coordination]\nurl = "zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}"\n'
    )
    second = kafka
    if request.param == "two brokers":
        (folder / "second").mkdir()
        second = stack.enter_context(running_broker(folder / "second"))
    return kafka_storage("default", kafka), kafka_storage("other", second)
