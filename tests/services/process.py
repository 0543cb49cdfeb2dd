"""Processes that tests start, pause and kill, and how tests wait for a condition."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

#: Ends only tests that hang. It is long because a loaded machine can be very slow.
DEADLINE_S = 300.0


def until(condition: Callable[[], Any], what: str = "the condition", *, seconds: float = DEADLINE_S) -> Any:
    """Call `condition` until it returns a true value, and return that value; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"timed out after {seconds} s while waiting for {what}"
        time.sleep(0.005)
    return answer


def free_port() -> int:
    """A free port that the system does not give to an outgoing connection before the service listens."""
    outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(20_000, max(outgoing, 30_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without Strandline's settings, and with `more`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE_")}
    return {**clean, **more}


def is_stopped(pid: int) -> bool:
    """Whether the process has received SIGSTOP."""
    return _status(pid) == psutil.STATUS_STOPPED


def _all_threads_stopped(pid: int) -> bool:
    """Also true for a process that has ended. On a loaded machine a thread can run on after SIGSTOP."""
    with suppress(FileNotFoundError, ProcessLookupError):
        states = [
            file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
        return all(state in "TtZX" for state in states)
    return True


def _status(pid: int) -> str | None:
    """None if there is no such process."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None


class Process:
    """A running program with all its child processes. It appends its output to `log_file`."""

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
        """None while the process runs."""
        return self._started.poll()

    def wait(self, seconds: float = DEADLINE_S) -> int:
        """Wait until the process ends; returns its exit code."""
        return self._started.wait(seconds)

    def until(self, condition: Callable[[], Any], what: str, *, seconds: float = DEADLINE_S) -> None:
        """Wait until the condition is true while the process runs; fail at once when the process ends."""
        until(lambda: self.exit_code is not None or condition(), what, seconds=seconds)
        assert self.exit_code is None, f"the process ended with exit code {self.exit_code}:\n{self.log_tail()}"

    def log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-3000:]

    def pause(self) -> None:
        """Send SIGSTOP to the process and its children. Return when all their threads have stopped."""
        self._signal(signal.SIGSTOP)
        family = [process.pid for process in self._family()]
        until(lambda: all(map(_all_threads_stopped, family)), "the stop of all threads")

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self, seconds: float = DEADLINE_S) -> int:
        """Send SIGTERM and wait; returns the exit code. A process that does not end in time is killed."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill_alone(self) -> None:
        """`kill -9` of the first process; its children keep running."""
        self._started.kill()
        self.wait()

    def kill(self) -> None:
        """`kill -9` of the process and its children. Return when they have ended."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGSTOP)  # a stopped process starts no more children
        family = self._family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # Children whose parent has ended are still in the process group.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        ended = (psutil.STATUS_ZOMBIE, None)  # a zombie has no open files and ports
        until(lambda: all(_status(process.pid) in ended for process in family), "the end of all processes")

    def _signal(self, number: int) -> None:
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _family(self) -> list[psutil.Process]:
        """The process and all its children: some of them have their own process groups."""
        if self.exit_code is not None:
            return []
        first = psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]
