"""A storage, a catalog or a node that does not answer: nothing else slows down, and a node stops in time.

Services are paused with SIGSTOP: connections stay open, and nothing comes back. The tests compare the order of
answers. What hangs gets an error after ten seconds; if that is too early on a loaded machine, they try again.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import pytest

from services import CLIENT, DEADLINE_S, Server, Service, is_stopped, until
from services.kafka import Broker
from strandline.coordination.connect import connect
from strandline.coordination.settings import CoordinationSettings

#: More than a node has threads for one storage.
MANY = 24
#: A session that does not expire within a test.
LONG_MS = 600_000
DRAIN_MS = 1_000
#: How many storages or publishes hang while a node stops.
SEVERAL = 4
#: The time in which a node must have ended. It is long for loaded machines.
STOP_S = 120.0


class Request:
    """A request whose answer is awaited later. Use it as a context manager."""

    def __init__(self, server: Server, method: str, path: str, body: Any = None) -> None:
        self._connection = socket.create_connection(("127.0.0.1", server.port))
        self._connection.settimeout(DEADLINE_S)
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        self._connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)

    @property
    def answered(self) -> bool:
        return bool(select.select([self._connection], [], [], 0)[0])

    def answer(self) -> tuple[int, http.client.HTTPMessage, Any]:
        response = http.client.HTTPResponse(self._connection)
        response.begin()
        content = response.read()
        return response.status, response.headers, json.loads(content) if content else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@contextmanager
def hung(service: Service) -> Iterator[None]:
    service.pause()
    try:
        yield
    finally:
        service.bring_back()


@contextmanager
def asleep(server: Server) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


def send(server: Server, method: str, path: str, body: Any = None) -> Any:
    answer = CLIENT.request(method, server.url + path, json=body)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def add_event_type(server: Server, name: str, storage: str = "default") -> None:
    """Create an event type on that storage, and publish one event."""
    send(server, "PUT", f"/storages/default/{storage}")
    send(server, "POST", "/event-types", {"name": name})
    send(server, "POST", f"/event-types/{name}/events", [{"n": 0}])


def add_kafka(server: Server, storage: str, broker: Broker) -> None:
    place = {"bootstrap_servers": broker.bootstrap_servers}
    send(server, "POST", "/storages", {"id": storage, "storage_type": "kafka", "kafka_configuration": place})


def measured(server: Server, metric: str) -> int:
    """The sum of the values of a metric; `metric` is a pattern."""
    page = CLIENT.get(f"{server.url}/metrics").text
    return int(sum(map(float, re.findall(rf"^{metric} (.+)$", page, re.MULTILINE))))


def check_near(server: Server) -> None:
    """Everything that needs only the embedded storage is answered."""
    for text in ("small", "large" * 10_000):
        send(server, "POST", "/event-types/near/events", [{"text": text}])
    assert send(server, "GET", "/event-types/near/partitions")
    assert send(server, "GET", "/event-types")
    assert CLIENT.get(f"{server.url}/health").status_code == 200
    cursors = {"X-Nakadi-Cursors": '[{"partition": "0", "offset": "BEGIN"}]'}
    read = CLIENT.get(f"{server.url}/event-types/near/events", params={"stream_limit": 1}, headers=cursors)
    assert read.json()["events"] == [{"n": 0}]


@pytest.fixture
def machines(postgres, zookeeper) -> dict[str, Any]:
    """The settings of a node whose catalog is PostgreSQL."""
    return {
        "catalog_url": postgres.url(postgres.new_database()),
        "coordination_url": f"zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}",
    }


def test_a_hung_storage_delays_no_other(tmp_path, kafka):
    """Reads of a Kafka that does not answer wait in threads of their own, which no other call uses."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "data", server_drain_timeout_ms=DRAIN_MS))
        add_kafka(server, "far", kafka)
        add_event_type(server, "far", "far")
        add_event_type(server, "near")
        stack.enter_context(hung(kafka))

        def near_is_not_delayed() -> bool:
            with ExitStack() as requests:
                path = "/event-types/far/partitions"
                reads = [requests.enter_context(Request(server, "GET", path)) for _ in range(MANY)]
                calls = r"""strandline_blocking_calls{pool="storage 'far'",state="\w+"}"""
                until(lambda: measured(server, calls) >= MANY, "the reads")
                check_near(server)
                return not any(read.answered for read in reads)

        until(near_is_not_delayed, "answers before those of the hung storage")


def test_more_calls_than_may_wait_are_503(tmp_path, kafka):
    """The queue of a storage that does not answer is bounded. More calls for it are 503, and no others."""
    flags = {"server_threads": 1, "server_max_waiting_calls": 2, "server_drain_timeout_ms": DRAIN_MS}
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "data", **flags))
        add_kafka(server, "far", kafka)
        add_event_type(server, "far", "far")
        add_event_type(server, "near")
        stack.enter_context(hung(kafka))
        reads = [stack.enter_context(Request(server, "GET", "/event-types/far/partitions")) for _ in range(MANY)]
        until(lambda: sum(read.answered for read in reads) >= MANY - 3, "the refusals")
        check_near(server)
        answers = [read.answer() for read in reads if read.answered]
        assert {status for status, _, _ in answers} == {503}
        assert all(int(headers["retry-after"]) >= 1 for _, headers, _ in answers)
        assert "too many requests wait for storage 'far'; retry later" in {
            told["detail"] for _, _, told in answers
        }


def test_a_hung_catalog_does_not_block_the_node(tmp_path, machines, postgres, kafka):
    """Publishes that wait for PostgreSQL do not block the event loop: the node answers what does not need it."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "node", server_drain_timeout_ms=DRAIN_MS, **machines))
        add_kafka(server, "far", kafka)
        add_event_type(server, "orders", "far")
        stack.enter_context(hung(postgres))

        def health_is_not_delayed() -> bool:
            with ExitStack() as requests:
                path = "/event-types/orders/events"
                publishes = [
                    requests.enter_context(Request(server, "POST", path, [{"n": n}])) for n in range(MANY)
                ]
                until_publishing(server, MANY)
                assert CLIENT.get(f"{server.url}/health").status_code == 200
                return not any(publish.answered for publish in publishes)

        until(health_is_not_delayed, "answers before those that need the hung catalog")


def until_publishing(server: Server, count: int) -> None:
    """Wait until the node has started that many publishes and knows the outcome of none."""
    until(lambda: measured(server, "strandline_open_publishes") == count, "the publishes")


def test_waiting_switches_hold_no_thread(tmp_path):
    """Switches that wait for a node which sleeps delay nothing. They are done when the node wakes up."""
    with ExitStack() as stack:
        flags = {"coordination_session_timeout_ms": LONG_MS, "log_switch_timeout_ms": LONG_MS, "server_threads": 2}
        server = stack.enter_context(Server(tmp_path / "data", **flags))
        other = stack.enter_context(Server(tmp_path / "data", **flags))
        add_storage(server)
        add_event_type(server, "near")
        names = [f"moving.{number}" for number in range(MANY)]
        for name in names:
            add_event_type(server, name)
        with asleep(other):
            body = {"storage_id": "second"}
            switches = [
                stack.enter_context(Request(server, "POST", f"/event-types/{name}/timelines", body))
                for name in names
            ]
            for name in names:
                until(lambda n=name: switch_state(server, n) == "preparing", "the switch")
            check_near(server)
            assert not any(switch.answered for switch in switches)
        assert [switch.answer()[0] for switch in switches] == [201] * MANY


def add_storage(server: Server) -> None:
    place = {"id": "second", "storage_type": "sqlite", "sqlite_configuration": {"directory": "second"}}
    send(server, "POST", "/storages", place)


def switch_state(server: Server, name: str) -> str | None:
    answer = CLIENT.get(f"{server.url}/event-types/{name}/timelines/switch")
    return answer.json()["state"] if answer.status_code == 200 else None


def test_a_stopping_node_gives_up_its_switch(tmp_path):
    """A switch that waits for another node does not delay a stop. It is undone, and its lock is free."""
    flags = {"coordination_session_timeout_ms": LONG_MS, "log_switch_timeout_ms": LONG_MS}
    server = Server(tmp_path / "data", **flags).start()
    with Server(tmp_path / "data", **flags) as other:
        add_storage(server)
        add_event_type(server, "near")
        with (
            asleep(other),
            Request(server, "POST", "/event-types/near/timelines", {"storage_id": "second"}) as switch,
        ):
            until(lambda: switch_state(server, "near") == "preparing", "the switch")
            assert stop(server) == 0
            status, headers, problem = switch.answer()
            assert (status, problem["code"]) == (503, "unavailable")
            assert int(headers["retry-after"]) >= 1
            coordination = connect(CoordinationSettings(), tmp_path / "data")
            assert coordination.locks() == {}
            coordination.close()
        assert switch_state(other, "near") == "aborted"
        send(other, "POST", "/event-types/near/timelines", {"storage_id": "second"})
        check_near(other)


def stop(server: Server) -> int:
    """Send SIGTERM and wait, not much longer than the drain timeout; returns the exit code."""
    return server.process.terminate(STOP_S)


def test_a_publish_to_a_hung_storage_is_answered_before_the_end(tmp_path, kafka):
    """When a node must end before storages have answered, the publishers are told that the outcome is unknown."""
    server = Server(tmp_path / "data", server_drain_timeout_ms=DRAIN_MS).start()
    names = [f"far.{number}" for number in range(SEVERAL)]
    for name in names:
        add_kafka(server, name, kafka)
        add_event_type(server, name, name)
    with ExitStack() as stack:
        stack.enter_context(hung(kafka))
        publishes = [
            stack.enter_context(Request(server, "POST", f"/event-types/{name}/events", [{"n": 1}]))
            for name in names
        ]
        read = stack.enter_context(Request(server, "GET", f"/event-types/{names[0]}/partitions"))
        until_publishing(server, SEVERAL)
        until(
            lambda: measured(server, "strandline_open_requests") > SEVERAL + 1, "the read"
        )  # and this one itself
        assert stop(server) == 0
        for publish in publishes:
            check_unknown(publish)
        status, headers, problem = read.answer()
        assert (status, problem["code"]) == (503, "unavailable")
        assert int(headers["retry-after"]) >= 1
    with Server(tmp_path / "data") as again:
        send(again, "POST", f"/event-types/{names[0]}/events", [{"n": 2}])


def test_a_publish_that_waits_for_a_hung_catalog_is_answered_before_the_end(tmp_path, machines, postgres, kafka):
    """The same while PostgreSQL does not answer."""
    server = Server(tmp_path / "node", server_drain_timeout_ms=DRAIN_MS, **machines).start()
    add_kafka(server, "far", kafka)
    add_event_type(server, "orders", "far")
    with ExitStack() as stack:
        stack.enter_context(hung(postgres))
        path = "/event-types/orders/events"
        publishes = [stack.enter_context(Request(server, "POST", path, [{"n": n}])) for n in range(SEVERAL)]
        until_publishing(server, SEVERAL)
        assert stop(server) == 0
        for publish in publishes:
            check_unknown(publish)


def check_unknown(publish: Request) -> None:
    status, headers, problem = publish.answer()
    assert (status, problem["code"]) == (504, "outcome_unknown")
    assert headers["content-type"] == "application/problem+json"


def test_a_publish_that_was_not_started_is_refused_at_the_end(tmp_path):
    """A publish that still waits for a switch when its node must end is not stored: 503, and not unknown."""
    flags = {"coordination_session_timeout_ms": LONG_MS, "server_drain_timeout_ms": DRAIN_MS}
    server = Server(tmp_path / "data", **flags).start()
    with Server(
        tmp_path / "data", env={"STRANDLINE_TEST_FAILPOINT": "initiator.close:stop"}, **flags
    ) as initiator:
        add_storage(server)
        add_event_type(server, "near")
        body = {"storage_id": "second"}
        with Request(initiator, "POST", "/event-types/near/timelines", body) as switch:
            until(lambda: is_stopped(initiator.pid), "the pause of the initiator")
            with asleep(initiator), Request(server, "POST", "/event-types/near/events", [{"n": 7}]) as publish:
                until_publishing(server, 1)
                assert stop(server) == 0
                status, headers, problem = publish.answer()
            assert (status, problem["code"]) == (503, "unavailable")
            assert int(headers["retry-after"]) >= 1
            assert switch.answer()[0] == 201
        check_near(initiator)
