"""Runs the jobs of `strandline up` in a child process beside the node, and starts it again when it ends.

The child has its own session, so that Ctrl-C reaches the node alone, which then closes the input of the child. The
input also closes when the node is killed: no job outlives its node.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Literal, cast

import msgspec

from strandline.pipeline import requirements
from strandline.pipeline.child import COMMAND, JobReport, Order
from strandline.pipeline.restarts import Pauses
from strandline.progress import JobState

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(JobReport).decode
# How long killed processes may take to end.
_KILLED_SECONDS = 2.0


class Supervisor:
    """`show` is called with every report, from one thread. Thread-safe."""

    def __init__(self, order: Order, show: Callable[[JobReport], None]) -> None:
        self._order = order
        self._show = show
        self._states = {job: JobState(job, "starting") for job in order.jobs}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="strandline-jobs", daemon=True)

    def states(self) -> list[JobState]:
        """What every job does now."""
        return [*self._states.values()]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the jobs to finish the work in hand. Does not wait for them."""
        with self._lock:
            self._stopping.set()
            if self._child is not None:
                with suppress(BrokenPipeError):  # it has ended already
                    cast("IO[bytes]", self._child.stdin).close()

    def close(self, seconds: float) -> None:
        """Wait until the jobs have stopped, and kill them after that time."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("the jobs did not stop in time and are killed; they repeat the work in hand next time")
            self.kill()
            self._thread.join(_KILLED_SECONDS)

    def kill(self) -> None:
        """End all processes of the jobs at once."""
        with self._lock:
            self._stopping.set()
            if self._child is not None:
                _kill_group(self._child.pid)

    def _run(self) -> None:
        missing = requirements.missing()
        if missing is not None:
            self._set_all("not_started", f"{missing}; then start `strandline up` again")
            return
        self._set_all("starting")
        pauses = Pauses()
        while not self._stopping.is_set():
            began = time.monotonic()
            ended = self._run_child()
            if not self._stopping.is_set():
                pause = pauses.after(time.monotonic() - began)
                self._set_all("restarting", f"{ended}; next start in {pause:g} s")
                self._stopping.wait(pause)
        self._set_all("stopped")

    def _run_child(self) -> str:
        """Run the child to its end; returns how it has ended."""
        try:
            child = self._started()
        except OSError as error:
            return f"the process of the jobs does not start ({error.strerror})"
        if child is None:
            return "stopped"
        for line in cast("IO[bytes]", child.stdout):
            self._told(_decode(line))
        # Its JVM must have ended before the next one starts. The id of the group is free only after `wait`.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(child.pid)
        with self._lock:
            code = child.wait()
            self._child = None
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the process of the jobs ended with {ended}"

    def _started(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            child = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self._child = child
            order = cast("IO[bytes]", child.stdin)
            with suppress(BrokenPipeError):  # it has ended already
                order.write(msgspec.json.encode(self._order) + b"\n")
                order.flush()
            return child

    def _told(self, report: JobReport) -> None:
        if report.state is not None:
            self._states[report.job] = report.state
        self._show(report)

    def _set_all(
        self, state: Literal["starting", "restarting", "not_started", "stopped"], detail: str = ""
    ) -> None:
        for job in self._order.jobs:
            self._told(JobReport(job, state=JobState(job, state, detail)))


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
