"""Real servers and commands for tests, as subprocesses that are waited for with a deadline."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

#: The console script of the environment that runs the tests.
STRANDLINE = str(Path(sys.executable).with_name("strandline"))


def until(condition: Callable[[], Any], seconds: float = 10.0, what: str = "the condition") -> Any:
    """Ask again and again until the answer is true, and return it; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
        time.sleep(0.01)
    return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without anything that would change what a command does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE_")}
    return {**clean, **more}


@dataclass(frozen=True)
class Server:
    """A running `strandline serve`; its output is kept in `log_file`."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, then wait; the exit code."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """`kill -9`: nothing is drained."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)


def start_server(
    data_dir: Path, *, port: int | None = None, env: dict[str, str] | None = None, **flags: Any
) -> Server:
    """Serve a data directory and return once `/ready` says so. `log_retention_ms=5` is `--log-retention-ms 5`."""
    port = port or free_port()
    log_file = data_dir.parent / f"{data_dir.name}-{port}.log"
    options = [part for name, value in flags.items() for part in _flag(name, value)]
    with log_file.open("ab") as output:
        process = subprocess.Popen(
            [STRANDLINE, "serve", "--data", str(data_dir), "--port", str(port), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(**(env or {})),
        )
    server = Server(f"http://127.0.0.1:{port}", port, process, log_file)
    try:
        until(lambda: _ready(server), 30, "the server's readiness")
    except BaseException:
        server.kill()
        raise
    return server


@contextmanager
def running_server(data_dir: Path, **flags: Any) -> Iterator[Server]:
    server = start_server(data_dir, **flags)
    try:
        yield server
    finally:
        server.stop()


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


def _ready(server: Server) -> bool:
    assert server.process.poll() is None, f"the server ended:\n{server.log_file.read_text()[-3000:]}"
    try:
        return httpx.get(f"{server.url}/ready", timeout=2).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def run_cli(
    *arguments: str, stdin: bytes = b"", timeout: float = 60.0, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """One `strandline` command from start to end."""
    return subprocess.run(
        [STRANDLINE, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        check=False,
        env=environment(**env),
    )
