"""A second process that works on the same data as a test: the test sends calls, and the process answers.

The test uses `Peer`. The process is a short script that opens the data and calls `serve`.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services import DEADLINE_S, environment
from strandline.errors import StrandlineError


class Peer:
    """Calls are answered in order. `call` is `send` followed by `receive`."""

    def __init__(self, script: Path, *arguments: str, **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(PYTHONPATH=os.pathsep.join(sys.path), **env),
        )
        self._answers: queue.SimpleQueue[tuple[Any, StrandlineError | None]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.receive() == "ready"

    def _read(self) -> None:
        with self._process.stdout as output:
            try:
                while True:
                    self._answers.put(pickle.load(output))
            except (EOFError, pickle.UnpicklingError):
                self._answers.put((None, EOFError("the other process ended")))

    def call(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.receive()

    def send(self, name: str, *arguments: Any) -> None:
        pickle.dump((name, arguments), self._process.stdin)
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Return the next answer, or raise its error."""
        answer, error = self._answers.get(timeout=DEADLINE_S)
        if error is not None:
            raise error
        return answer

    def ended(self) -> int:
        """Wait until the process has been killed; returns the signal."""
        return -self._process.wait(DEADLINE_S)

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def wait_until_stopped(self) -> None:
        """Wait until the process has stopped itself at a failpoint."""
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`. It also ends a stopped process."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._process.stdin.close()


def serve(place: Any, *acts: Callable[..., Any]) -> None:
    """Run every call that arrives: the act with that name, or else the method of the place."""
    named = {act.__name__: act for act in acts}
    say("ready")
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            say(named[name](place, *arguments) if name in named else getattr(place, name)(*arguments))
        except StrandlineError as error:
            say(None, error)


def say(answer: Any, error: StrandlineError | None = None) -> None:
    """Answer a call. An act that does not return can send several answers."""
    pickle.dump((answer, error), sys.stdout.buffer)
    sys.stdout.buffer.flush()
