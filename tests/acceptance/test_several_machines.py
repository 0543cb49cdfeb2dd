"""Nodes that share only services: a PostgreSQL catalog, ZooKeeper, and records on Kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from services import CLIENT, Server
from services.kafka import Broker
from services.postgres import PostgresServer
from services.zookeeper import ZookeeperServer


@pytest.fixture(scope="module")
def nodes(tmp_path_factory, postgres: PostgresServer) -> Iterator[tuple[Server, Server]]:
    """Two nodes, each with its own data directory, as on two machines."""
    folder = tmp_path_factory.mktemp("machines")
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        shared = {
            "catalog_url": postgres.url(postgres.new_database()),
            "coordination_url": f"zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}",
            "coordination_session_timeout_ms": 3_000,
        }
        with Server(folder / "one", **shared) as one, Server(folder / "other", **shared) as other:
            yield one, other


@pytest.fixture(scope="module")
def storages(nodes: tuple[Server, Server], kafka: Broker) -> list[str]:
    """Two storages; the first one is the default."""
    for number, name in enumerate(("first", "second")):
        configuration = {"bootstrap_servers": kafka.bootstrap_servers}
        body = {"id": name, "storage_type": "kafka", "kafka_configuration": configuration}
        answer = CLIENT.post(f"{nodes[0].url}/storages", json=body)
        assert (answer.status_code, answer.json().get("default", False)) == (201, number == 0)
    return ["first", "second"]


@pytest.fixture
def name(nodes: tuple[Server, Server], storages: list[str]) -> str:
    """An event type, created at the first node."""
    found = f"machines.{uuid.uuid4().hex}"
    assert CLIENT.post(f"{nodes[0].url}/event-types", json={"name": found}).status_code == 201
    return found


def publish(node: Server, name: str, *numbers: int) -> None:
    answer = CLIENT.post(f"{node.url}/event-types/{name}/events", json=[{"n": n} for n in numbers])
    assert answer.status_code == 200, answer.text


def read(node: Server, name: str, count: int) -> list[int]:
    """The first `count` events of partition 0."""
    found: list[int] = []
    headers = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])}
    limits = {"stream_limit": count, "stream_timeout": 20, "batch_flush_timeout": 1}
    url = f"{node.url}/event-types/{name}/events"
    with CLIENT.stream("GET", url, params=limits, headers=headers) as answer:
        for line in answer.iter_lines():
            found += [event["n"] for event in json.loads(line).get("events", [])]
    return found


def test_what_one_node_makes_the_other_has(nodes, name):
    """Event types, events and changes of one node are visible on the other at once."""
    one, other = nodes
    publish(one, name, 0, 1)
    publish(other, name, 2, 3)
    assert read(one, name, 4) == read(other, name, 4) == [0, 1, 2, 3]
    definition = CLIENT.get(f"{other.url}/event-types/{name}").json()
    changed = {**definition, "owning_application": "another"}
    assert CLIENT.put(f"{other.url}/event-types/{name}", json=changed).status_code == 200
    assert CLIENT.get(f"{one.url}/event-types/{name}").json()["owning_application"] == "another"
    assert CLIENT.delete(f"{one.url}/event-types/{name}").status_code == 200
    assert CLIENT.get(f"{other.url}/event-types/{name}").status_code == 404


def test_an_event_type_moves_while_both_publish(nodes, name):
    """A switch loses no events of either node, and both nodes see two timelines."""
    one, other = nodes
    publish(one, name, 0)
    publish(other, name, 1)
    body = {"storage_id": "second"}
    answer = CLIENT.post(f"{other.url}/event-types/{name}/timelines", json=body)
    assert answer.status_code == 201, answer.text
    publish(one, name, 2)
    publish(other, name, 3)
    assert read(one, name, 4) == read(other, name, 4) == [0, 1, 2, 3]
    for node in nodes:
        timelines = CLIENT.get(f"{node.url}/event-types/{name}/timelines").json()
        assert [timeline["storage_id"] for timeline in timelines] == ["first", "second"]


def test_a_subscription_is_known_everywhere(nodes, name):
    """A subscription that was committed at one node continues at the other."""
    one, other = nodes
    publish(one, name, *range(4))
    body = {"owning_application": "app", "event_types": [name], "read_from": "begin"}
    subscription = CLIENT.post(f"{one.url}/subscriptions", json=body).json()["id"]
    for node, expected in ((one, [0, 1]), (other, [2, 3])):
        url = f"{node.url}/subscriptions/{subscription}"
        limits = {"batch_limit": 2, "stream_limit": 2, "stream_timeout": 30}
        with CLIENT.stream("GET", f"{url}/events", params=limits) as answer:
            stream_id = answer.headers["X-Nakadi-StreamId"]
            batch = next(found for line in answer.iter_lines() if "events" in (found := json.loads(line)))
            assert [event["n"] for event in batch["events"]] == expected
            items = {"items": [batch["cursor"]]}
            headers = {"X-Nakadi-StreamId": stream_id}
            assert CLIENT.post(f"{url}/cursors", json=items, headers=headers).status_code in {200, 204}


def test_a_storage_on_one_machine_is_refused(nodes):
    """A SQLite storage is refused if nodes are on several machines, with the reason."""
    body = {"id": "here", "storage_type": "sqlite", "sqlite_configuration": {"directory": "here"}}
    answer = CLIENT.post(f"{nodes[0].url}/storages", json=body)
    assert answer.status_code == 422
    assert "one machine" in answer.json()["detail"]
