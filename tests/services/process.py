"""A process that a test starts, pauses and kills, and how tests wait for an outcome."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

#: Only ends a test that hangs: a loaded machine can be very slow, and no test measures how fast it is.
DEADLINE_S = 120.0


def until(condition: Callable[[], Any], what: str = "the condition", *, seconds: float = DEADLINE_S) -> Any:
    """Call `condition` until it returns something true, and return that; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
        time.sleep(0.005)
    return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without Strandline's settings, and with `more`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE_")}
    return {**clean, **more}


def is_stopped(pid: int) -> bool:
    """Whether the process has received SIGSTOP."""
    return _status(pid) == psutil.STATUS_STOPPED


def _status(pid: int) -> str | None:
    """None when there is no such process."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None


class Process:
    """A running program with all processes below it. It appends its output to `log_file`."""

    def __init__(self, command: Sequence[str], log_file: Path, **options: Any) -> None:
        """`options` are those of `subprocess.Popen`."""
        self.log_file = log_file
        with log_file.open("ab") as output:
            self._started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **options,
            )
        self.pid = self._started.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._started.poll()

    def wait(self, seconds: float = DEADLINE_S) -> int:
        """Wait until it ends; its exit code."""
        return self._started.wait(seconds)

    def until(self, condition: Callable[[], Any], what: str, *, seconds: float = DEADLINE_S) -> None:
        """Wait until the condition comes true while the process runs; fail at once when the process ends."""
        until(lambda: self.exit_code is not None or condition(), what, seconds=seconds)
        assert self.exit_code is None, f"ended with {self.exit_code}:\n{self.log_tail()}"

    def log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-3000:]

    def pause(self) -> None:
        """SIGSTOP to all of its processes."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self, seconds: float = DEADLINE_S) -> int:
        """SIGTERM, then wait until it ends; its exit code. It is killed when it does not end in time."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill_alone(self) -> None:
        """`kill -9` of the first process; those below it stay."""
        self._started.kill()
        self.wait()

    def kill(self) -> None:
        """`kill -9` of all of its processes. Return when they have ended."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGSTOP)  # so that it starts no more processes
        family = self._family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # Processes stay in the group when their parent has ended before them.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        ended = (psutil.STATUS_ZOMBIE, None)  # a zombie holds no file and no port any more
        until(lambda: all(_status(process.pid) in ended for process in family), "the end of all processes")

    def _signal(self, number: int) -> None:
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _family(self) -> list[psutil.Process]:
        """The process and all below it: some of them have process groups of their own."""
        if self.exit_code is not None:
            return []
        first = psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]
