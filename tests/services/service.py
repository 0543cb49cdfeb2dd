"""What all services have in common: start, wait for an answer, pause, kill, restart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from services.process import Process, free_port


class Service(ABC):
    """A server on loopback. It keeps its port, data and log file across `kill` and `start`.

    As a context manager it starts on entry and is killed on exit.
    """

    #: Also the name of the log file.
    name: str

    def __init__(self, folder: Path, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.log_file = self.folder / f"{self.name}.log"
        self.port = port or free_port()
        self._process: Process | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments. It runs in `folder`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the service answers requests. False if the connection fails."""

    def options(self) -> dict[str, Any]:
        """Additional options of `subprocess.Popen`."""
        return {}

    @property
    def process(self) -> Process:
        """The process that was started last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> Self:
        """Start the service, and return once it answers."""
        self._process = Process(self.command(), self.log_file, cwd=self.folder, **self.options())
        try:
            self._wait_for_answer()
        except BaseException:
            self.kill()
            raise
        return self

    def _wait_for_answer(self) -> None:
        self.process.until(self.answers, f"an answer of {self.name}")

    def pause(self) -> None:
        """Send SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def kill(self) -> None:
        """`kill -9` of the process and its children."""
        self.process.kill()

    def bring_back(self) -> None:
        """Make the service answer again after `kill` or `pause`."""
        if self._process is None or self._process.exit_code is not None:
            self.start()
        else:
            self.resume()
            self._wait_for_answer()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
