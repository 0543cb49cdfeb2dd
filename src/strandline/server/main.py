"""Runs a node: Granian in this process, the chores of all rooms, and a stop that loses no acknowledged work."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from strandline import logging_setup
from strandline.clock import system_clock
from strandline.errors import Unavailable
from strandline.logging_setup import fields
from strandline.platform import Platform
from strandline.room import Chore
from strandline.server import stopping
from strandline.server.app import build
from strandline.server.routing import ServerState
from strandline.settings import Settings

log = logging.getLogger(__name__)
# Granian's limit for a request head. `max_header_bytes` is checked later and answered with a problem document.
_HEADER_BUFFER = 1 << 20


def run(data: Path, settings: Settings, host: str, port: int, banner: Callable[[str], None] | None = None) -> None:
    """Serve a data directory until SIGTERM or SIGINT. `banner` is called with the URL when the node is ready."""
    logging_setup.configure(settings.logs)
    _refuse_taken(host, port)
    platform = Platform(data, settings, system_clock())
    try:
        deadline = asyncio.run(_serve(platform, host, port, banner))
    except BaseException:
        platform.close()
        raise
    closed = stopping.close(platform, deadline)
    # Our work is done. Threads may still wait for a storage, and Granian's for connections that clients keep open.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if closed else 1)


def _refuse_taken(host: str, port: int) -> None:
    """Raise Unavailable if the port is in use: Granian would share it instead of failing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None


async def _serve(platform: Platform, host: str, port: int, banner: Callable[[str], None] | None) -> float:
    """Serve until a signal. Returns when the process must have ended, on the monotonic clock."""
    for room in platform.rooms.values():
        await asyncio.to_thread(room.start)
    state = ServerState(platform.rooms, platform.settings.server)
    server: Any = Server(
        build(state),
        address=host,
        port=port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=1024,
        http1_settings=HTTP1Settings(max_buffer_size=_HEADER_BUFFER),
        log_enabled=False,
    )
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve())
    repeating = asyncio.create_task(upkeep(state))
    await _until_listening(host, port, serving)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log.info("ready", extra=fields(url=url, data=str(platform.data), pid=os.getpid()))
    if banner is not None:
        banner(url)
    await asyncio.wait([asyncio.create_task(stop.wait()), serving], return_when=asyncio.FIRST_COMPLETED)
    repeating.cancel()
    deadline = await stopping.drain(state)
    server.stop()
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(serving), 1)
    state.pools.close()
    return deadline


async def _until_listening(host: str, port: int, serving: asyncio.Task[None]) -> None:
    while not serving.done():
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return
    await serving


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
