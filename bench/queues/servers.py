"""The servers of the peers, each with the durability that is to be compared."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.queues import fetch
from bench.services import Service


class Beanstalkd(Service):
    """`options` decide about durability: `-b <folder> -f0` syncs every change, no `-b` keeps jobs in memory."""

    name = "beanstalkd"

    def __init__(self, folder: Path, *, log: bool, sync_ms: int | None = None) -> None:
        super().__init__(folder)
        self._program = str(fetch.program("beanstalkd-1", "beanstalkd"))
        self._log = ["-b", str(self.folder)] if log else []
        self._sync = [] if sync_ms is None else ["-f", str(sync_ms)]

    def command(self) -> Sequence[str]:
        return [self._program, "-l", "127.0.0.1", "-p", str(self.port), *self._log, *self._sync]

    def answers(self) -> bool:
        return _answer(self.port, b"stats\r\n").startswith(b"OK")

    @property
    def url(self) -> str:
        return f"beanstalk://127.0.0.1:{self.port}"


class Redis(Service):
    """With an append-only file, synced `always` before an answer, or `everysec`."""

    name = "redis"

    def __init__(self, folder: Path, appendfsync: str) -> None:
        super().__init__(folder)
        self._program = str(fetch.program("redis-7", "redis-server"))
        self._appendfsync = appendfsync

    def command(self) -> Sequence[str]:
        stored = ("--appendonly", "yes", "--appendfsync", self._appendfsync, "--save", "")
        return [self._program, "--bind", "127.0.0.1", "--port", str(self.port), *stored]

    def options(self) -> dict[str, Any]:
        return {"env": fetch.environment_of("redis-7")}

    def answers(self) -> bool:
        return _answer(self.port, b"PING\r\n").startswith(b"+PONG")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


def _answer(port: int, question: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(question)
            return connection.recv(64)
    except OSError:
        return b""
