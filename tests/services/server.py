"""Strandline itself: `strandline serve` as a service, and single commands of the CLI."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from services.process import DEADLINE_S, environment
from services.service import Service

#: The client of the tests. Each request has its own connection and a long timeout, for loaded machines.
CLIENT = httpx.Client(timeout=DEADLINE_S, limits=httpx.Limits(max_keepalive_connections=0))
#: The console script of the environment that runs the tests.
STRANDLINE = str(Path(sys.executable).with_name("strandline"))


class Server(Service):
    """`strandline serve` on a data directory. `log_retention_ms=5` is the flag `--log-retention-ms 5`.

    It has started when `/ready` answers 200. As a context manager it is stopped gracefully on exit.
    """

    def __init__(
        self, data: Path, *, port: int | None = None, env: dict[str, str] | None = None, **flags: Any
    ) -> None:
        self.name = data.name
        super().__init__(data.parent, port)
        self.log_file = self.folder / f"{data.name}-{self.port}.log"
        self.url = f"http://127.0.0.1:{self.port}"
        self._env, self._flags = env or {}, flags

    def command(self) -> Sequence[str]:
        flags = [part for name, value in self._flags.items() for part in _flag(name, value)]
        return [STRANDLINE, "serve", "--data", str(self.folder / self.name), "--port", str(self.port), *flags]

    def options(self) -> dict[str, Any]:
        return {"env": environment(**self._env)}

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit code."""
        return self.process.terminate()

    def kill(self) -> None:
        """`kill -9` of the first process only: tests check that a node leaves no other process running."""
        self.process.kill_alone()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Up(Server):
    """`strandline up`: the node with its jobs. It has started when the node has."""

    def command(self) -> Sequence[str]:
        program, _, *rest = super().command()
        return [program, "up", *rest]


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


def run_cli(
    *arguments: str, stdin: bytes = b"", timeout: float = DEADLINE_S, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Run one `strandline` command to its end."""
    return subprocess.run(
        [STRANDLINE, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        check=False,
        env=environment(**env),
    )
