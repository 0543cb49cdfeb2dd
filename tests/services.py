"""Starts and stops the real processes that tests talk to: free ports, temporary folders, ended by id."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx

_START_SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServerProcess:
    """A `strandline serve` of its own; its log stays beside the data for a failed test to look at."""

    def __init__(self, data: Path, port: int, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        self.data, self.port = Path(data), port
        self.url = f"http://127.0.0.1:{port}"
        self.log = self.data.parent / f"{self.data.name}-server-{port}.log"
        command = [
            sys.executable,
            "-m",
            "strandline",
            "serve",
            "--data",
            str(data),
            "--port",
            str(port),
            *arguments,
        ]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, **env}
            )
        self.pid = self._process.pid

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self.log.read_text()}")
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"the server was not ready in time:\n{self.log.read_text()}")

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM, and the exit code once it has drained."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = 20) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def running(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self.stop()


def start_server(
    data: Path, *arguments: str, port: int | None = None, env: dict[str, str] | None = None
) -> ServerProcess:
    """A server over a data directory, ready to answer."""
    server = ServerProcess(data, port or free_port(), arguments, env or {})
    server.wait_ready()
    return server
