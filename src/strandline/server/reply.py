"""The response of a request, sent by the first thread that has it."""

from __future__ import annotations

import threading

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Reply:
    """Sends one response to a request; later ones are dropped.

    `anywhere`: the server's `send` does its work when it is called, in any thread, as Granian's does. Then a
    thread that has the response need not wait for the event loop.
    """

    __slots__ = ("_anywhere", "_send", "_unsent")

    def __init__(self, send: Send, *, anywhere: bool) -> None:
        self._send = send
        self._anywhere = anywhere
        self._unsent = threading.Lock()  # acquired by the thread that sends

    @property
    def is_sent(self) -> bool:
        return self._unsent.locked()

    def send_now(self, response: Response) -> None:
        """Send a whole response from any thread, if the server allows it."""
        if self._anywhere and self._unsent.acquire(blocking=False):
            head = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
            self._send(head)
            self._send({"type": "http.response.body", "body": response.body})

    async def send(self, response: Response, scope: Scope, receive: Receive) -> None:
        """Send a response on the event loop, unless one was sent already."""
        if self._unsent.acquire(blocking=False):
            await response(scope, receive, self._send)
