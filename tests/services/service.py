"""What all services have in common: start, wait until it answers, pause, kill, start again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from services.process import DEADLINE_S, Process, free_port


class Service(ABC):
    """A server on loopback. It keeps its port, its data and its log file over `kill` and `start`.

    As a context manager it starts on entry and is killed on exit.
    """

    #: The log file is named after it.
    name: str
    #: How long a start may take.
    start_seconds = DEADLINE_S

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
        """Whether it serves requests; a failed connection means that it does not yet."""

    def options(self) -> dict[str, Any]:
        """More options of `subprocess.Popen`."""
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
        """Return once it answers."""
        self._process = Process(self.command(), self.log_file, cwd=self.folder, **self.options())
        try:
            self._wait_for_answer()
        except BaseException:
            self.kill()
            raise
        return self

    def _wait_for_answer(self) -> None:
        self.process.until(self.answers, f"an answer of {self.name}", seconds=self.start_seconds)

    def pause(self) -> None:
        """SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def kill(self) -> None:
        """`kill -9` of all of its processes."""
        self.process.kill()

    def bring_back(self) -> None:
        """Make it answer again after `kill` or `pause`."""
        if self._process is None or self._process.exit_code is not None:
            self.start()
        else:
            self.resume()
            self._wait_for_answer()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
