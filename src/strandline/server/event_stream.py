"""A streaming response that ends when its client disconnects or stalls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger("strandline.http")
# The server queues some parts for a client that does not read; their size limits its memory.
_PART_BYTES = 1 << 16


class EventStream(Response):
    """Sends chunks until they end, or until the client disconnects or takes nothing for `patience` seconds.

    Starlette's own streaming response notices a disconnect only when it sends, and waits indefinitely for a full
    socket. `ended` is called when the response is over, even if the generator never started.
    """

    def __init__(
        self, chunks: AsyncGenerator[bytes], patience: float, ended: Callable[[], object], *, media_type: str
    ) -> None:
        super().__init__(media_type=media_type)
        self._chunks = chunks
        self._patience = patience
        self._ended = ended
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        sending = asyncio.create_task(self._send(send))
        listening = asyncio.create_task(_until_disconnected(receive))
        try:
            await asyncio.wait([sending, listening], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, listening):
                task.cancel()
            result, _ = await asyncio.gather(sending, listening, return_exceptions=True)
            await self._chunks.aclose()
            self._ended()
            if isinstance(result, TimeoutError):
                log.info("a stream ended because its client stopped reading")
            elif isinstance(result, Exception):
                log.error("a stream failed", exc_info=result)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            for start in range(0, len(chunk) or 1, _PART_BYTES):
                part = chunk[start : start + _PART_BYTES]
                async with asyncio.timeout(self._patience):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
