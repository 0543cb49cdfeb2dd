"""Fahrschein, Zalando's Java client, unmodified, against a node."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nakadi_orders import ORDERS

from services import CLIENT, DEADLINE_S, Server, until
from services.jars import fetched

_SOURCE = Path(__file__).with_name("FahrscheinUser.java")
_JAVA = ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_JAVAC = ("-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none")


@dataclass
class Fahrschein:
    """A small Java application. Each command is a separate process, which ends without closing its streams."""

    classpath: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, server: Server, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*_JAVA, "-cp", self.classpath, "FahrscheinUser", server.url, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def answer(self, process: subprocess.Popen[bytes]) -> Any:
        output, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors.decode()
        return json.loads(output)

    def __call__(self, server: Server, *arguments: str) -> Any:
        return self.answer(self.start(server, *arguments))


@pytest.fixture(scope="module")
def fahrschein(tmp_path_factory) -> Iterator[Fahrschein]:
    if subprocess.run(["java", "--describe-module", "jdk.compiler"], capture_output=True, check=False).returncode:
        pytest.skip("this Java has no compiler (module jdk.compiler): a JDK is needed, a JRE is not enough")
    classes = tmp_path_factory.mktemp("classes")
    classpath = ":".join([str(classes), *map(str, sorted(fetched("fahrschein").iterdir()))])
    command = [*_JAVA, *_JAVAC, "-cp", classpath, "-d", str(classes), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    user = Fahrschein(classpath)
    yield user
    for process in user.started:
        with process:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("fahrschein") / "data") as started:
        yield started


def declare(server: Server, **more: Any) -> str:
    """Create an event type over HTTP: Fahrschein has no call for it."""
    name = f"fahrschein.orders-{uuid.uuid4().hex}"
    schema = {"properties": {"order": {"type": "string"}}, "required": ["order"]}
    definition = {
        **ORDERS,
        "name": name,
        "partitions": 3,
        "schema": {"type": "json_schema", "schema": json.dumps(schema)},
    }
    CLIENT.post(f"{server.url}/event-types", json={**definition, **more}).raise_for_status()
    return name


@pytest.fixture
def orders(server: Server) -> str:
    return declare(server)


def publish(server: Server, name: str, first: int, end: int) -> None:
    """Publish without a Java process, for tests of reading."""
    when = "2024-05-01T12:00:00+02:00"
    events = [
        {"metadata": {"eid": str(uuid.uuid4()), "occurred_at": when}, "order": str(n)} for n in range(first, end)
    ]
    CLIENT.post(f"{server.url}/event-types/{name}/events", json=events).raise_for_status()


def numbers(found: dict[str, Any]) -> list[int]:
    return sorted(int(event["order"]) for event in found["events"])


def stats(server: Server, subscription: str) -> list[dict[str, Any]]:
    answer = CLIENT.get(f"{server.url}/subscriptions/{subscription}/stats").raise_for_status()
    return [one for kind in answer.json()["items"] for one in kind["partitions"]]


def all_read(server: Server, subscription: str) -> bool:
    """Whether all events are committed. Before the first stream the statistics have no `unconsumed_events`."""
    return all(one.get("unconsumed_events") == 0 for one in stats(server, subscription))


def unread(server: Server, subscription: str) -> bool:
    return all(one["state"] == "unassigned" for one in stats(server, subscription))


def at(cursors: list[dict[str, Any]]) -> dict[str, str]:
    return {cursor["partition"]: cursor["offset"] for cursor in cursors}


def test_from_publishing_to_committed_cursors(fahrschein, server, orders):
    """Plain, gzip and zstd publishes are read completely. Committed events are not sent again."""
    sent = [
        eid
        for number, encoding in enumerate(["IDENTITY", "GZIP", "ZSTD"])
        for eid in fahrschein(server, "publish", orders, encoding, *(str(3 * number + n) for n in range(3)))
    ]
    found = fahrschein(server, "consume", orders, "group", "begin", "9")
    assert numbers(found) == [*range(9)]
    assert {event["eid"] for event in found["events"]} == set(sent)
    for event in found["events"]:
        assert event["event_type"] == orders
        assert event["partition"] in {"0", "1", "2"}
        assert (event["flow_id"], event["span_ctx"], event["version"]) == ("a-flow", {"span": "1"}, "1.0.0")
        assert event["seconds"] in range(-1, 60)  # between occurred_at and received_at
    newest = {one["partition"]: one["newestAvailableOffset"] for one in fahrschein(server, "partitions", orders)}
    assert at(found["cursors"]) == newest
    assert all_read(server, found["subscription"])
    until(lambda: unread(server, found["subscription"]), "the end of the stream")
    fahrschein(server, "publish", orders, "IDENTITY", "9", "10")
    again = fahrschein(server, "consume", orders, "group", "begin", "2")
    assert again["subscription"] == found["subscription"]
    assert numbers(again) == [9, 10]


def test_streams_that_end_are_opened_again(fahrschein, server, orders):
    """The client reconnects when a stream ends, and gets every event of two event types once."""
    other = declare(server)
    publish(server, orders, 0, 6)
    publish(server, other, 6, 12)
    found = fahrschein(server, "consume", f"{orders},{other}", "group", "begin", "12", "2", "4")
    assert numbers(found) == [*range(12)]
    assert found["reconnections"] >= 2
    assert all_read(server, found["subscription"])


def test_a_subscription_begins_at_cursors(fahrschein, server, orders):
    """A subscription from cursors reads only the events after them. A deleted subscription is 404."""
    publish(server, orders, 0, 5)
    process = fahrschein.start(server, "consume", orders, "later", "cursors", "5")
    until(lambda: subscriptions(server, orders), "the subscription")
    publish(server, orders, 5, 10)
    found = fahrschein.answer(process)
    assert numbers(found) == [*range(5, 10)]
    assert fahrschein(server, "unsubscribe", found["subscription"])
    assert subscriptions(server, orders) == []
    assert fahrschein(server, "unsubscribe", found["subscription"])["status"] == 404


def subscriptions(server: Server, name: str) -> list[dict[str, Any]]:
    answer = CLIENT.get(f"{server.url}/subscriptions", params={"event_type": name})
    return answer.raise_for_status().json()["items"]


def test_readers_survive_a_restart(fahrschein, tmp_path):
    """A client with an open stream continues at its position when the node restarts."""
    node = Server(tmp_path / "data").start()
    try:
        name = declare(node)
        publish(node, name, 0, 4)
        group = fahrschein(node, "subscribe", name, "group")["id"]
        process = fahrschein.start(node, "consume", name, "group", "begin", "8")
        until(lambda: all_read(node, group), "the first commits")
        assert node.stop() == 0
        node.start()
        publish(node, name, 4, 8)
        found = fahrschein.answer(process)
        assert numbers(found) == [*range(8)]
        assert found["reconnections"] >= 1
    finally:
        node.stop()


def test_the_low_level_stream(fahrschein, server, orders):
    """Streams work from the beginning, for some partitions, from cursors before a switch, and from the end."""
    publish(server, orders, 0, 6)
    found = fahrschein(server, "read", orders, "begin", "6", "2")
    assert numbers(found) == [*range(6)]
    of_two = sum(event["partition"] == "2" for event in found["events"])
    assert of_two
    some = fahrschein(server, "read", orders, "begin:2", str(of_two))
    assert {event["partition"] for event in some["events"]} == {"2"}

    storage = {"storage_type": "sqlite", "sqlite_configuration": {"directory": "other"}}
    CLIENT.post(f"{server.url}/storages", json={"id": "other", **storage}).raise_for_status()
    switch = f"{server.url}/event-types/{orders}/timelines"
    CLIENT.post(switch, json={"storage_id": "other"}).raise_for_status()
    publish(server, orders, 6, 12)
    cursors = ",".join(f"{partition}={offset}" for partition, offset in at(found["cursors"]).items())
    assert numbers(fahrschein(server, "read", orders, cursors, "6", "2", "3")) == [*range(6, 12)]

    process = fahrschein.start(server, "read", orders, "newest", "1")
    # The start of a stream without a subscription cannot be observed, so publish until the client ends.
    end = 12
    while process.poll() is None:
        publish(server, orders, end, end + 1)
        end += 1
    (first, *_) = numbers(fahrschein.answer(process))
    assert first in range(12, end)


def test_data_change_events(fahrschein, server):
    """Data change events of Fahrschein are stored with all their fields."""
    schema = {"type": "json_schema", "schema": json.dumps({"properties": {"order": {"type": "string"}}})}
    name = declare(server, category="data", partitions=1, partition_strategy="random", schema=schema)
    eid = fahrschein(server, "publish-change", name, "7")
    query = {"batch_limit": 1, "stream_limit": 1}
    headers = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])}
    answer = CLIENT.get(f"{server.url}/event-types/{name}/events", params=query, headers=headers)
    (event,) = answer.raise_for_status().json()["events"]
    assert event["metadata"]["eid"] == eid
    del event["metadata"]
    assert event == {"data_type": "order", "data_op": "S", "data": {"order": "7"}}


def test_a_refused_publish_says_what_became_of_each_event(fahrschein, server, orders):
    """The client's exception has the status of every event and the step that failed."""
    refused = fahrschein(server, "publish", orders, "GZIP", "1", "null", "2")
    assert refused["error"] == "EventPublishingException"
    statuses = [item["publishing_status"] for item in refused["items"]]
    assert statuses == ["aborted", "failed", "aborted"]
    assert refused["items"][1]["step"] == "validating"
    assert "order" in refused["items"][1]["detail"]
    assert len({item["eid"] for item in refused["items"]}) == 3
    (partition, *_) = fahrschein(server, "partitions", orders)
    assert partition["newestAvailableOffset"].endswith("-1")


@pytest.mark.parametrize(
    ("command", "error", "status"),
    [
        (("partitions", "fahrschein.nothing"), "IOProblem", 404),
        (("publish", "fahrschein.nothing", "ZSTD", "1"), "IOProblem", 404),
        (("subscribe", "fahrschein.nothing", "group"), "IOProblem", 422),
        (("read", "ORDERS", "0=001-0001-000000000000000999", "1"), "IOProblem", 412),
        (("commit", "SUBSCRIPTION", str(uuid.uuid4()), "ORDERS", "001-0001--1"), "CursorCommitException", 422),
        (("commit", str(uuid.uuid4()), str(uuid.uuid4()), "ORDERS", "001-0001--1"), "CursorCommitException", 404),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_errors_carry_their_status(fahrschein, server, orders, command, error, status):
    """The client raises its own exception with the status of the problem document."""
    names = {"ORDERS": orders}
    if "SUBSCRIPTION" in command:
        names["SUBSCRIPTION"] = fahrschein(server, "subscribe", orders, "group")["id"]
    answer = fahrschein(server, *(names.get(word, word) for word in command))
    assert (answer["error"], answer["status"]) == (error, status)


def test_one_reader_too_many_is_refused(fahrschein, server):
    """A second reader of a subscription with one partition gets 409."""
    name = declare(server, partitions=1)
    group = fahrschein(server, "subscribe", name, "group")["id"]
    first = fahrschein.start(server, "consume", name, "group", "begin", "1")
    until(lambda: not unread(server, group), "the first stream")
    refused = fahrschein(server, "consume", name, "group", "begin", "1")
    assert (refused["error"], refused["status"]) == ("IOProblem", 409)
    publish(server, name, 0, 1)
    assert numbers(fahrschein.answer(first)) == [0]
