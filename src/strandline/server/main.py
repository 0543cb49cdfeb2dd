"""Runs a node: Granian in this process, the chores of all rooms, and a stop that loses no acknowledged work."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings

from strandline import logging_setup
from strandline.clock import system_clock
from strandline.logging_setup import fields
from strandline.platform import Platform
from strandline.progress import JobState
from strandline.room import Chore
from strandline.server import connections, listening, stopping
from strandline.server.app import build
from strandline.server.listening import GranianServer
from strandline.server.routing import ServerState
from strandline.settings import Settings

log = logging.getLogger(__name__)
# Granian's limit for a request head. `max_header_bytes` is checked later and answered with a problem document.
_HEADER_BUFFER = 1 << 20
_BACKLOG = 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long what runs beside the node may take to stop, if the node itself has used up the drain timeout.
_LEAST_CLOSING_S = 1.0


class Beside(Protocol):
    """What runs beside a node, such as the jobs of `strandline up`. It starts after the node."""

    def states(self) -> Sequence[JobState]:
        """What `/ready` shows."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Ask it to stop, without waiting. It may be asked again."""

    def close(self, seconds: float) -> None:
        """Wait until it has stopped, and end it after that time."""

    def kill(self) -> None:
        """End it at once."""


def run(
    data: Path,
    settings: Settings,
    host: str,
    port: int,
    banner: Callable[[str], None] | None = None,
    beside: Beside | None = None,
) -> None:
    """Serve a data directory until SIGTERM or SIGINT. `banner` is called with the URL when the node is ready.

    A second signal ends the process at once, like a crash.
    """
    logging_setup.configure(settings.logs)
    with closing(listening.bind(host, port)) as bound:
        platform = Platform(data, settings, system_clock())
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                deadline = runner.run(_serve(platform, host, bound, banner, beside))
        except BaseException:
            if beside is not None:
                beside.kill()
            platform.close()
            raise
    for number in _SIGNALS:  # the event loop, which handled the first one, is closed
        signal.signal(number, lambda number, _frame: _end_at_once(number, beside))
    closed = stopping.close(platform, deadline)
    if beside is not None:
        beside.close(max(deadline - time.monotonic(), _LEAST_CLOSING_S))
    # Our work is done. Threads may still wait for a storage, and Granian's for connections that clients keep open.
    logging_setup.write_deferred()
    sys.stdout.flush()
    os._exit(0 if closed else 1)


def _end_at_once(number: int, beside: Beside | None) -> None:
    if beside is not None:
        beside.kill()
    os._exit(128 + number)


async def _serve(
    platform: Platform,
    host: str,
    bound: socket.socket,
    banner: Callable[[str], None] | None,
    beside: Beside | None,
) -> float:
    """Serve until a signal. Returns when the process must have ended, on the monotonic clock."""
    for room in platform.rooms.values():
        await asyncio.to_thread(room.start)
    settings = connections.fitted(platform.settings.server)
    state = ServerState(platform.rooms, settings, platform.clock)
    state.sends_anywhere = True  # Granian does
    server: Any = GranianServer(
        build(state, host),
        bound,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=True,
        backlog=_BACKLOG,
        backpressure=settings.max_connections,
        http1_settings=HTTP1Settings(max_buffer_size=_HEADER_BUFFER),
        log_enabled=False,
    )
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            _end_at_once(number, beside)
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    listening.listen(bound, _BACKLOG)
    serving = asyncio.create_task(server.serve())
    repeating = asyncio.create_task(upkeep(state))
    log.info("ready", extra=fields(url=url, data=str(platform.data), pid=os.getpid()))
    if banner is not None:
        banner(url)
    if beside is not None:
        state.jobs = beside.states
        beside.start()
    await asyncio.wait([asyncio.create_task(stop.wait()), serving], return_when=asyncio.FIRST_COMPLETED)
    repeating.cancel()
    if beside is not None:
        beside.stop()
    deadline = await stopping.drain(state)
    server.stop()
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(serving), 1)
    state.pools.close()
    return deadline


async def upkeep(state: ServerState) -> None:
    """Repeat the chores of all rooms until cancelled."""
    await asyncio.gather(*(_repeat(state, chore) for room in state.rooms.values() for chore in room.chores()))


async def _repeat(state: ServerState, chore: Chore) -> None:
    while True:
        try:
            await state.pools.chores.run(chore.run)
        except Exception:
            log.exception("%s failed; retrying", chore.name)
        await asyncio.sleep(chore.interval_ms / 1000)
