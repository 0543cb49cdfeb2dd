"""How a node stops: within a time limit, whatever it waits for, and with an answer to every request.

A process that ends while a storage does not answer loses nothing: an event without an answer may or may not be
stored, which its publisher is told, and the leases of the process expire.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from strandline.logging_setup import fields
from strandline.platform import Platform
from strandline.server.routing import ServerState

log = logging.getLogger(__name__)

# The part of the drain timeout that is kept for the last answers and for closing the platform.
_LAST_PART, _LAST_SECONDS = 0.2, 2.0
# How long the last answers may take to be sent, and the least time for closing.
_SENDING_S, _LEAST_CLOSING_S = 0.5, 1.0


async def drain(state: ServerState) -> float:
    """Refuse new publishes, end streams and switches, wait for open requests; answer those that take too long.

    Returns the time, on the monotonic clock, when the process must have ended.
    """
    seconds = state.settings.drain_timeout_ms / 1000
    deadline = time.monotonic() + seconds
    state.draining.set()
    log.info("stopping", extra=fields(open_requests=state.open_requests, open_streams=state.open_streams))
    patience = seconds - min(seconds * _LAST_PART, _LAST_SECONDS)
    await _becomes(lambda: not state.open_requests and not state.pools.busy, patience)
    if state.open_requests:
        log.warning(
            "requests have no outcome yet; answering that it is unknown",
            extra=fields(open_requests=state.open_requests),
        )
        for room in state.rooms.values():
            room.give_up()
        await asyncio.sleep(0)  # what the rooms refused has been answered; the rest is unknown
        state.pools.give_up()
        await _becomes(lambda: not state.open_requests, _SENDING_S)
    return max(deadline, time.monotonic() + _LEAST_CLOSING_S)


async def _becomes(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition is true, at most that long."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - happens once
        await asyncio.sleep(0.01)


def close(platform: Platform, deadline: float) -> bool:
    """Close the platform, and wait for that until the deadline. Returns whether it did not fail."""
    failed: list[BaseException] = []

    def closing() -> None:
        try:
            platform.close()
        except BaseException as error:
            log.exception("closing failed")
            failed.append(error)

    thread = threading.Thread(target=closing, name="strandline-closing", daemon=True)
    thread.start()
    thread.join(max(deadline - time.monotonic(), 0))
    if thread.is_alive():
        log.warning(
            "ending before everything is closed; what is left behind expires or is cleaned up by other nodes"
        )
    return not failed
