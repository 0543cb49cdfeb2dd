"""Who sends the response of a request."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response

from strandline.server.reply import Reply


class Server:
    """Records what is sent; what `send` returns is only waited for on the event loop."""

    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []

    def send(self, message):
        self.sent.append(message)
        return asyncio.sleep(0) if self.on_the_loop else None

    on_the_loop = False


@pytest.fixture
def server() -> Server:
    return Server()


def send_on_the_loop(server: Server, reply: Reply, response: Response) -> None:
    server.on_the_loop = True
    asyncio.run(reply.send(response, {"type": "http"}, None))


def test_a_thread_sends_the_whole_response(server):
    """The event loop, which comes later, sends nothing."""
    reply = Reply(server.send, anywhere=True)
    reply.send_now(Response(b"first", 207))
    send_on_the_loop(server, reply, Response(b"second"))
    head, body = server.sent
    assert (head["status"], body["body"]) == (207, b"first")
    assert (b"content-length", b"5") in head["headers"]


def test_a_thread_that_is_too_late_sends_nothing(server):
    """The request was answered on the event loop, after a timeout for instance."""
    reply = Reply(server.send, anywhere=True)
    send_on_the_loop(server, reply, Response(b"first"))
    reply.send_now(Response(b"second"))
    assert [message.get("body") for message in server.sent] == [None, b"first"]


def test_other_servers_send_on_the_event_loop_only(server):
    """A thread leaves it to the event loop."""
    reply = Reply(server.send, anywhere=False)
    reply.send_now(Response(b"response"))
    assert server.sent == []
    send_on_the_loop(server, reply, Response(b"response"))
    assert len(server.sent) == 2
