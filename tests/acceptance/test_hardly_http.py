"""Malformed HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import pytest

from requests_as_is import send
from services import DEADLINE_S, Server

HOST = b"Host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /event-types/plain/events HTTP/1.1\r\nContent-Type: application/json\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
RAW = [
    # description, bytes, start of the answer (empty: the server may close the connection or wait)
    ("no HTTP at all", b"garbage\r\n\r\n", b"HTTP/1.1 400"),
    ("a TLS greeting", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"HTTP/1.1 400"),
    ("zeros", b"\0" * 1000, b"HTTP/1.1 400"),
    ("only line breaks", b"\r\n" * 1000, b""),
    ("a version from the future", b"GET /health HTTP/9.9\r\n\r\n", b"HTTP/1.1 400"),
    ("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
    ("HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n", b"HTTP/1.0 200"),
    ("no Host", b"GET /health HTTP/1.1\r\n\r\n", b"HTTP/1.1 200"),
    ("a Host that is none", b"GET /health HTTP/1.1\r\nHost: [::1/?#@\r\n\r\n", b"HTTP/1.1 200"),
    ("CONNECT", b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n", b"HTTP/1.1 404"),
    ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", b"HTTP/1.1 404"),
    ("an absolute address", b"GET http://x/nothing HTTP/1.1\r\n" + HOST + b"\r\n", b"HTTP/1.1 404"),
    ("an upgrade", HEALTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"HTTP/1.1 200"),
    ("half a handshake", HEALTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"HTTP/1.1 400"),
    ("a space in the path", b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", b"HTTP/1.1 400"),
    ("a header without a name", b"GET /health HTTP/1.1\r\n: x\r\n\r\n", b"HTTP/1.1 400"),
    ("a thousand headers", b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n", b"HTTP/1.1 431"),
    ("half a head", b"GET /health HT", b""),
    ("half a body", POST + b"Content-Length: 100\r\n\r\n[{}", b""),
    ("a length that is none", POST + b"Content-Length: ten\r\n\r\n[]", b"HTTP/1.1 400"),
    ("a negative length", POST + b"Content-Length: -1\r\n\r\n[]", b"HTTP/1.1 400"),
    ("an endless length", POST + b"Content-Length: 99999999999999999999999\r\n\r\n[]", b"HTTP/1.1 400"),
    ("a length beyond the limit", POST + b"Content-Length: 2000000\r\n\r\n", b"HTTP/1.1 413"),
    ("the same with Expect", POST + b"Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n", b"HTTP/1.1 413"),
    ("two lengths", POST + b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n[]", b"HTTP/1.1 400"),
    ("a length that is too short", POST + b"Content-Length: 2\r\n\r\n[{}]", b"HTTP/1.1 400"),
    ("a chunk size that is none", CHUNKED + b"zz\r\n[{}]\r\n0\r\n\r\n", b"HTTP/1.1 400"),
    ("an endless chunk", CHUNKED + b"ffffffffffffffffff\r\n[{}]", b"HTTP/1.1 400"),
    ("a chunk that is too short", CHUNKED + b"9\r\n[{}]\r\n0\r\n\r\n", b""),
    ("no last chunk", CHUNKED + b"4\r\n[{}]\r\n", b""),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), [pytest.param(*case[1:], id=case[0]) for case in RAW])
def test_what_is_hardly_http(target: Server, data: bytes, expected: bytes):
    """The server answers or closes the connection, writes no data, and continues to serve other clients."""
    with socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_S) as connection:
        connection.sendall(data)
        if expected:
            assert _received(connection, len(expected)) == expected
    assert send(target, "GET", "/health").status == 200


def _received(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (part := connection.recv(size - len(received))):
        received += part
    return received


def test_requests_sent_ahead_are_answered_in_order(target: Server):
    """Three pipelined requests get three answers, in the order of the requests."""
    ahead = HEALTH + b"\r\n"
    bad = b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n"
    last = HEALTH + b"Connection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_S) as connection:
        connection.sendall(ahead + bad + last)
        received = b"".join(_parts(connection))
    assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def _parts(connection: socket.socket) -> Iterable[bytes]:
    while part := connection.recv(65536):
        yield part
