"""The id of a request, by which its log line, its answer and its events can be found together."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable

from starlette.types import Message, Scope, Send

HEADER = "X-Flow-Id"
_NAME = HEADER.lower().encode()
_is_valid = re.compile(rb"[!-~](?:[ -~]{0,198}[!-~])?").fullmatch
_HEADS = frozenset({"http.response.start", "websocket.http.response.start"})


def flow_id(scope: Scope) -> str:
    """The flow id of a request that `named` has seen."""
    found: str = scope["flow_id"]
    return found


def named(scope: Scope, send: Send) -> Send:
    """Give the request the flow id of its client, or a new one. The result also sends it with the answer."""
    given = next((value for name, value in scope["headers"] if name == _NAME), b"")
    value = given if _is_valid(given) else uuid.uuid4().hex.encode()
    scope["flow_id"] = value.decode()

    def send_with_id(message: Message) -> Awaitable[None]:
        if message["type"] in _HEADS:
            message = {**message, "headers": [*message["headers"], (_NAME, value)]}
        return send(message)

    return send_with_id
