"""Sends requests exactly as given, to a node that has one event type of every kind."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services import DEADLINE_S, Server
from strandline.server.stream_encoders import JSON_STREAM

#: The limits of the node.
MAX_BODY = 1_000_000
MAX_EVENT = 10_000
EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
METADATA = {"eid": EID, "occurred_at": "2024-05-01T12:00:00Z"}
NUMBERED = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
#: The event types of the node.
DEFINITIONS: dict[str, dict[str, Any]] = {
    "placed": {"partitions": 2, "partition_strategy": "user_defined"},
    "plain": {},
    "moved": {},
    "keyed": {"partition_strategy": "hash", "partition_key_fields": ["key.id"]},
    "checked": {"schema": {"schema": NUMBERED}},
    "careful": {"compatibility_mode": "compatible", "schema": {"schema": NUMBERED}},
    "facts": {"category": "business"},
    "changes": {"category": "data"},
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def send(
    server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """Send one request with its path and body exactly as given. Values that are not bytes are sent as JSON.

    A body has the media type of JSON unless the headers have another one.
    """
    if body is not None and not isinstance(body, bytes | Iterator):
        body = json.dumps(body).encode()
    if body is not None:
        headers = {"Content-Type": "application/json", **(headers or {})}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request(method, path, body, headers or {}, encode_chunked=isinstance(body, Iterator))
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        # Do not read a stream that was opened by mistake: it would last an hour.
        text = b"" if received.get("content-type") == JSON_STREAM else response.read()
        return Answer(response.status, received, text)
    finally:
        connection.close()


def assert_problem(answer: Answer, status: int, word: str = "") -> dict[str, Any]:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json
    assert {"type", "title", "status", "detail", "code"} <= problem.keys()
    assert problem["status"] == status
    assert word.lower() in problem["detail"].lower()
    return problem


def contents(server: Server) -> dict[str, Any]:
    """All definitions, and the ends of all partitions."""
    kinds = send(server, "GET", "/event-types").json
    ends = {k["name"]: send(server, "GET", f"/event-types/{k['name']}/partitions").json for k in kinds}
    return {"event types": kinds, "partitions": ends}
