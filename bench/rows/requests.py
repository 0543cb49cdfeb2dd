"""Single events over HTTP, from a load client that is not Python. The peer is a plain application on Granian."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

import strandline
from bench import data
from bench.machine import cpu_seconds
from bench.rows.append import PARTITIONS
from bench.rows.publish import event_type
from bench.runner import Row, Scale, Side, Target
from bench.services import Load, Server, Service, environment

_SECONDS = 3
_ROOT = str(Path(__file__).parents[2])
_EVENTS = "/event-types/orders/events"


class PlainServer(Service):
    """`bench.plain_app` on Granian with its defaults: one worker, uvloop."""

    name = "plain-app"

    def command(self) -> Sequence[str]:
        options = ("--interface", "asgi", "--host", "127.0.0.1", "--port", str(self.port))
        return [sys.executable, "-m", "granian", *options, "bench.plain_app:app"]

    def options(self) -> dict[str, Any]:
        packages = os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])
        return {"env": environment(BENCH_TABLE=str(self.folder / "plain.db"), PYTHONPATH=packages)}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            return httpx.post(self.url + _EVENTS, content=b"[]", timeout=2).is_success
        except httpx.TransportError:
            return False


@contextmanager
def _sides(directory: Path, scale: Scale, connections: int) -> Iterator[list[Side]]:
    (body,) = data.arrays(data.values(1), 1)
    seconds = scale.of(_SECONDS)
    with ExitStack() as stack:
        ours = stack.enter_context(Server(directory / "ours"))
        stack.enter_context(strandline.connect(ours.url)).log.create(event_type())
        peer = stack.enter_context(PlainServer(directory))

        def side(name: str, server: Server | PlainServer) -> Side:
            load = Load(server.url + _EVENTS, body, connections, directory / "load.lua")
            return Side(name, lambda: load.run(seconds), lambda: cpu_seconds(server.process.pid))

        yield [side("ours", ours), side("Starlette, a commit per event", peer)]


def _row(connections: int, ratio: float) -> Row:
    return Row(
        f"single events over HTTP, {connections} connection{'s' if connections > 1 else ''}",
        {
            "event bytes": data.mean_size(data.values(1)),
            "partitions": PARTITIONS,
            "batch": 1,
            "connections": f"{connections}, from wrk",
            "warm-up": "1 round",
            "schema": f"{len(data.SCHEMA['properties'])} properties",
        },
        lambda directory, scale: _sides(directory, scale, connections),
        Target(ratio=ratio, cpu_us=250),
    )


ROWS = [_row(1, 0.9), _row(16, 1.5), _row(64, 1.5)]
