"""Runs a driver: a program in `drivers/` that uses one peer with the peer's own client library.

A driver prints `ready` when it is connected. Each line of its input is the number of seconds of a round. The
driver creates, leases and deletes messages for that time, and prints how many it has deleted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.queues import fetch

_DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True)
class Load:
    """What all sides of a row do: `callers` at once, each with batches of `batch` messages with the same body."""

    callers: int
    batch: int
    seconds: float
    body: bytes


class Driver:
    def __init__(self, name: str, url: str, load: Load, log_file: Path) -> None:
        self._seconds = load.seconds
        self._log_file = log_file
        arguments = [url, str(load.callers), str(load.batch), load.body.decode()]
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*_program(name), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
            )
        self.pid = self._process.pid
        self._expect("ready")

    def run(self) -> int:
        self._process.stdin.write(f"{self._seconds}\n")
        self._process.stdin.flush()
        return int(self._line())

    def _expect(self, answer: str) -> None:
        if (line := self._line()) != answer:
            raise RuntimeError(f"the driver said {line!r}, not {answer!r}")

    def _line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            tail = self._log_file.read_text(errors="replace")[-1500:]
            raise RuntimeError(f"the driver ended with exit code {self._process.wait()}: {tail}")
        return line.strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _program(name: str) -> list[str]:
    script = _DRIVERS / name
    return ["node" if script.suffix == ".mjs" else sys.executable, str(script)]


def _environment() -> dict[str, str]:
    """Both kinds of drivers find their packages. Node finds no packages of other folders for modules."""
    return {
        **os.environ,
        "PYTHONPATH": str(fetch.python_packages()),
        "NODE_PATH": str(fetch.node_modules()),
        "NODE_ENV": "production",
    }
