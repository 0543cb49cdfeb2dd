"""A node from start to stop: its port, its limits, stalled clients, and graceful stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import pytest

from services import CLIENT, DEADLINE_S, Process, Server, run_cli, until

EVENTS = "/event-types/orders/events"
FROM_BEGIN = {"X-Nakadi-Cursors": '[{"partition": "0", "offset": "BEGIN"}]'}


def create(server: Server) -> None:
    assert CLIENT.post(f"{server.url}/event-types", json={"name": "orders"}).status_code == 201


def publish(server: Server, count: int) -> None:
    assert CLIENT.post(server.url + EVENTS, json=[{"n": n} for n in range(count)]).status_code == 200


def open_streams(server: Server) -> float:
    found = re.search(r"^strandline_open_streams (.+)$", CLIENT.get(f"{server.url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


@contextmanager
def half_a_publish(server: Server) -> Iterator[socket.socket]:
    """An open connection with an incomplete publish; the node waits for the rest of its body."""
    with closing(socket.create_connection(("127.0.0.1", server.port))) as connection:
        head = f"POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 3\r\n\r\n[".encode())
        yield connection


def refused(server: Server) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", server.port)) != 0


def test_a_stopping_node_drains(tmp_path):
    """On SIGTERM a node is not ready, refuses publishes and ends its streams. No acknowledged event is lost."""
    data = tmp_path / "data"
    server = Server(data, server_drain_timeout_ms=600_000).start()
    create(server)
    publish(server, 3)
    with half_a_publish(server) as busy, httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
        with client.stream("GET", EVENTS, headers=FROM_BEGIN, params={"batch_limit": 3}) as stream:
            chunks = stream.iter_raw()
            assert next(chunks).count(b'"n"') == 3
            os.kill(server.pid, signal.SIGTERM)
            until(lambda: CLIENT.get(f"{server.url}/ready").status_code == 503, "the drain")
            assert b"".join(chunks) == b""
        late = client.post(EVENTS, json=[{"n": 3}])
        assert late.status_code == 503
        assert late.json()["code"] == "unavailable"
        assert int(late.headers["retry-after"]) >= 1
        assert client.get("/health").status_code == 200
        busy.sendall(b" ]")
        assert busy.recv(12) == b"HTTP/1.1 503"
    assert server.process.wait() == 0
    assert refused(server)
    with Server(data) as again:
        answer = CLIENT.get(again.url + EVENTS, headers=FROM_BEGIN, params={"stream_limit": 3, "batch_limit": 3})
        assert [event["n"] for event in answer.json()["events"]] == [0, 1, 2]


def test_a_stopping_node_does_not_wait_for_ever(tmp_path):
    """A client that never finishes its request delays the stop by at most the drain timeout."""
    flags = {"server_drain_timeout_ms": 300, "server_stalled_client_ms": 600_000}
    server = Server(tmp_path / "data", **flags).start()
    create(server)
    with half_a_publish(server):
        assert server.stop() == 0


def test_more_streams_than_allowed_are_503(tmp_path):
    """Streams above the limit are 503. The limit counts only open streams."""
    with Server(tmp_path / "data", server_max_streams=2) as server, httpx.Client(timeout=DEADLINE_S) as client:
        create(server)
        with client.stream("GET", server.url + EVENTS), client.stream("GET", server.url + EVENTS):
            answer = client.get(server.url + EVENTS)
            assert answer.status_code == 503
            assert answer.json()["code"] == "too_many_streams"
            assert int(answer.headers["retry-after"]) >= 1
            assert client.head(server.url + EVENTS).status_code == 200
        until(lambda: open_streams(server) == 0, "the end of the streams")
        params = {"stream_timeout": 1, "batch_flush_timeout": 1}
        assert client.get(server.url + EVENTS, params=params).status_code == 200


def test_streams_that_cannot_open_take_no_place(tmp_path):
    """Refused streams do not count toward the limit."""
    with Server(tmp_path / "data", server_max_streams=1) as server:
        create(server)
        bad = {"X-Nakadi-Cursors": '[{"partition": "7", "offset": "BEGIN"}]'}
        for _ in range(3):
            assert CLIENT.get(f"{server.url}/event-types/nobody/events").status_code == 404
            assert CLIENT.get(server.url + EVENTS, headers=bad).status_code == 412
        assert open_streams(server) == 0


def test_a_client_that_takes_nothing_is_let_go(tmp_path):
    """The stream of a client that does not read ends after a timeout, while the connection is still open."""
    with Server(tmp_path / "data") as server:
        create(server)
        for _ in range(20):
            assert CLIENT.post(server.url + EVENTS, json=[{"text": "x" * 900_000}]).status_code == 200
    with Server(tmp_path / "data", server_stalled_client_ms=1_000) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        cursors = FROM_BEGIN["X-Nakadi-Cursors"]
        client.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\nX-Nakadi-Cursors: {cursors}\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        until(lambda: open_streams(server) == 0, "the end of the stalled stream")


def test_a_client_that_vanishes_is_noticed(tmp_path):
    """A stream ends with its connection, before the next keep-alive."""
    with Server(tmp_path / "data") as server:
        create(server)
        with CLIENT.stream("GET", server.url + EVENTS):
            assert open_streams(server) == 1
        # The first keep-alive, which would also detect the closed connection, is due after 15 s.
        until(lambda: open_streams(server) == 0, "the end of the stream", seconds=14)


def test_a_client_that_stops_sending_is_let_go(tmp_path):
    """A request whose body does not arrive in time is 408, and nothing is written."""
    with Server(tmp_path / "data", server_stalled_client_ms=1_000) as server:
        create(server)
        with half_a_publish(server) as stalled:
            stalled.settimeout(DEADLINE_S)
            assert stalled.recv(12) == b"HTTP/1.1 408"
        (partition,) = CLIENT.get(f"{server.url}/event-types/orders/partitions").json()
        assert partition["newest_available_offset"] == "001-0001--1"


@pytest.mark.parametrize(
    ("flags", "logged"),
    [
        ({}, ["GET /storages", "GET /event-types/nobody"]),
        ({"server_log_requests": "failed"}, ["GET /event-types/nobody"]),
        ({"server_log_requests": "none"}, []),
    ],
)
def test_the_log_has_the_requests_that_are_asked_for(tmp_path, flags, logged):
    """Every request is in the log, unless the setting says otherwise."""
    with Server(tmp_path / "data", **flags) as server:
        for path in ("/storages", "/event-types/nobody"):
            CLIENT.get(server.url + path)
    lines = [json.loads(line) for line in server.log_file.read_text().splitlines()]
    requests = [line["message"] for line in lines if line["logger"] == "strandline.http"]
    assert [request for request in requests if request != "GET /ready"] == logged


def test_an_unknown_choice_of_requests_to_log_is_refused(tmp_path):
    """The node names the choices and does not start."""
    refused = run_cli("serve", "--data", str(tmp_path / "data"), "--server-log-requests", "some")
    assert refused.returncode == 1
    assert b"all, failed, none" in refused.stderr


def test_a_taken_port_is_refused(tmp_path):
    """A node whose port is in use ends with exit code 3 and names the port."""
    with Server(tmp_path / "first") as server:
        second = run_cli("serve", "--data", str(tmp_path / "second"), "--port", str(server.port))
        assert second.returncode == 3
        assert str(server.port).encode() in second.stderr
        assert CLIENT.get(f"{server.url}/health").status_code == 200


def test_nodes_that_start_together_do_not_share_a_port(tmp_path):
    """Of several nodes that start at once on one port, one serves. The others end and name the port."""
    first, *others = nodes = [Server(tmp_path / f"data{n}", port=None) for n in range(4)]
    for node in others:
        node.port = first.port
    for round_ in range(3):
        started = [
            Process(node.command(), tmp_path / f"{round_}-{node.name}.log", **node.options()) for node in nodes
        ]
        try:
            until(
                lambda now=started: sum(one.exit_code is not None for one in now) == len(nodes) - 1,
                "the losers' end",
            )
            (winner,) = [one for one in started if one.exit_code is None]
            winner.until(first.answers, "an answer of the node that is left")
            for loser in started:
                if loser is not winner:
                    assert loser.exit_code == 3
                    assert f"cannot listen on 127.0.0.1:{first.port}" in loser.log_tail()
            assert {CLIENT.get(f"{first.url}/health").status_code for _ in range(20)} == {200}
        finally:
            for one in started:
                one.kill()


def test_nothing_listens_after_a_kill(tmp_path):
    """A node is one process: after `kill -9` the port is free for the next node."""
    server = Server(tmp_path / "data").start()
    create(server)
    publish(server, 1)
    server.kill()
    assert refused(server)
    with Server(tmp_path / "data", port=server.port) as again:
        assert CLIENT.get(f"{again.url}/event-types/orders").status_code == 200
