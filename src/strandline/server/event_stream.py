"""A response without end that lets go of clients that vanish or stall."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

log = logging.getLogger("strandline.http")

Message = MutableMapping[str, Any]


class EventStream(Response):
    """Sends what the generator yields until it ends, the client hangs up, or one chunk takes too long to send.

    Starlette's own streaming response notices a vanished client only when it sends, and a full socket never
    finishes sending. `ended` is called when it is over, even before the generator began.
    """

    def __init__(
        self, chunks: AsyncGenerator[bytes], patience: float, ended: Callable[[], object], *, media_type: str
    ) -> None:
        super().__init__(media_type=media_type)
        self._chunks = chunks
        self._patience = patience
        self._ended = ended
        del self.headers["content-length"]

    async def __call__(
        self,
        scope: MutableMapping[str, Any],  # noqa: ARG002 - the ASGI signature
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        sending = asyncio.create_task(self._send(send))
        listening = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait([sending, listening], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, listening):
                task.cancel()
            result, _ = await asyncio.gather(sending, listening, return_exceptions=True)
            await self._chunks.aclose()
            self._ended()
            if isinstance(result, TimeoutError):
                log.info("a stream ended because its client took no more data")
            elif isinstance(result, Exception):
                log.error("a stream failed", exc_info=result)

    async def _send(self, send: Callable[[Message], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
