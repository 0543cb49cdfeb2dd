"""What a node does when it has reached its limits: it refuses with 503, and goes on answering everything else."""

from __future__ import annotations

import gzip
import re
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

import pytest

from requests_as_is import Answer, assert_problem, send
from services import DEADLINE_S, Server, until

EVENTS = "/event-types/orders/events"
FROM_BEGIN = {"X-Nakadi-Cursors": '[{"partition": "0", "offset": "BEGIN"}]'}


@contextmanager
def node(tmp_path, kind: type[Server] = Server, **flags: object) -> Iterator[Server]:
    with kind(tmp_path / "data", logs_level="warning", **flags) as server:
        assert send(server, "POST", "/event-types", {"name": "orders"}).status == 201
        yield server


def gauge(server: Server, name: str) -> float:
    found = re.search(rf"^{name} (.+)$", send(server, "GET", "/metrics").body.decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def assert_refused(answer: Answer, word: str) -> None:
    assert_problem(answer, 503, word)
    assert int(answer.headers["retry-after"]) >= 1


class Client:
    """A connection that stays open."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(("127.0.0.1", server.port))

    def send(self, head: str, body: bytes = b"") -> None:
        self._socket.sendall(
            f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n".encode() + body
        )

    def status(self) -> int:
        return int(self._socket.recv(12).split()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.fixture
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_files")
def test_two_thousand_connections(tmp_path):
    """1,000 streams and 1,000 idle clients: everything is answered, and one more stream is refused."""
    with node(tmp_path) as server, ExitStack() as clients:
        for head in [f"GET {EVENTS}"] * 1000 + ["GET /health"] * 1000:
            client = clients.enter_context(Client(server))
            client.send(head, b"\r\n")
            assert client.status() == 200
        assert gauge(server, "strandline_open_streams") == 1000
        assert send(server, "GET", "/health").status == 200
        assert send(server, "POST", EVENTS, [{"n": 1}]).status == 200
        assert_refused(send(server, "GET", EVENTS), "1000 streams")
        assert send(server, "GET", "/health").status == 200


class FewFiles(Server):
    """A node that may open 200 files."""

    def command(self) -> Sequence[str]:
        return ["sh", "-c", 'ulimit -n 200 && exec "$@"', "sh", *super().command()]


def test_a_node_with_few_files_serves_fewer_streams(tmp_path):
    """It says so in its log, refuses the others, and goes on answering."""
    with node(tmp_path, FewFiles) as server, ExitStack() as clients:
        assert "at most 100 connections and 50 streams" in server.log_file.read_text()
        for _ in range(50):
            client = clients.enter_context(Client(server))
            client.send(f"GET {EVENTS}", b"\r\n")
            assert client.status() == 200
        assert_refused(send(server, "GET", EVENTS), "50 streams")
        assert send(server, "POST", EVENTS, [{"n": 1}]).status == 200
        assert send(server, "GET", "/health").status == 200


def test_bodies_are_bounded_in_bytes(tmp_path):
    """Unfinished bodies count from their first byte. What exceeds the limit is refused until others have ended."""
    with node(tmp_path, server_max_pending_bytes=3_000_000) as server:
        with ExitStack() as clients:
            for _ in range(3):
                client = clients.enter_context(Client(server))
                client.send(f"POST {EVENTS}", b"Content-Length: 1000000\r\n\r\n" + b" " * 900_000)
            until(lambda: gauge(server, "strandline_pending_bytes") == 2_700_000, "the bodies")
            assert_refused(send(server, "POST", EVENTS, b" " * 900_000 + b"[]"), "3000000 are allowed")
            assert send(server, "POST", EVENTS, [{"n": 1}]).status == 200
            assert send(server, "GET", "/health").status == 200
        until(lambda: gauge(server, "strandline_pending_bytes") == 0, "the end of the bodies")
        assert send(server, "POST", EVENTS, b" " * 900_000 + b"[]").status == 200


def test_a_decompressed_body_counts(tmp_path):
    """A small body that is large after decompression is refused before it is in memory."""
    with node(tmp_path, server_max_pending_bytes=3_000_000) as server:
        packed = gzip.compress(b" " * 4_000_000 + b"[]")
        refused = send(server, "POST", EVENTS, packed, {"Content-Encoding": "gzip"})
        assert_refused(refused, "bytes")
        assert gauge(server, "strandline_pending_bytes") == 0


def test_streams_are_bounded_in_bytes(tmp_path):
    """Readers that never read fill the limit; then a new stream is refused, until they leave."""
    with node(tmp_path, server_max_stream_bytes=10_000_000, server_stalled_client_ms=600_000) as server:
        for _ in range(20):
            assert send(server, "POST", EVENTS, [{"text": "x" * 900_000}]).status == 200
        cursors = f"X-Nakadi-Cursors: {FROM_BEGIN['X-Nakadi-Cursors']}\r\n\r\n".encode()
        with ExitStack() as clients:
            for _ in range(10):
                client = clients.enter_context(Client(server))
                client.send(f"GET {EVENTS}", cursors)
                assert client.status() in {200, 503}
            answers: list[Answer] = []

            def refused() -> bool:  # for a moment perhaps: the sockets may still take something
                answers.append(send(server, "GET", EVENTS))
                return answers[-1].status == 503

            until(refused, "a full buffer")
            assert_refused(answers[-1], "10000000 are allowed")
            assert gauge(server, "strandline_stream_bytes") < 20_000_000
            assert send(server, "POST", EVENTS, [{"n": 1}]).status == 200
        until(lambda: gauge(server, "strandline_stream_bytes") == 0, "the end of the streams")
        assert send(server, "GET", EVENTS).status == 200
