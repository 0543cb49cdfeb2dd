"""One coordination and everybody at it: sessions in this process, and others as processes of their own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services import until
from strandline import errors
from strandline.coordination.connect import connect
from strandline.coordination.port import Coordination
from strandline.coordination.settings import CoordinationSettings
from zookeeper_server import ZookeeperServer

WORKER = Path(__file__).with_name("coordination_worker.py")

#: Short, so that the suite is quick; a heartbeat may still be late by a third of it.
TIMEOUT_MS = 1_500
#: How soon others must have noticed that a session is over.
NOTICED = TIMEOUT_MS / 1000 + 3


class Other:
    """Another process. Calls are answered in order; `send` and `receive` are the halves of a call."""

    def __init__(self, url: str, timeout_ms: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), url, str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.receive() == "ready"

    def _read(self) -> None:
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")

    def call(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.receive()

    def send(self, name: str, *arguments: Any) -> None:
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)

    def receive(self, seconds: float = 30.0) -> Any:
        line = self._lines.get(timeout=seconds)
        assert line, "the other process ended"
        answer = json.loads(line)
        if "error" in answer:
            raise getattr(errors, answer["error"])
        return answer["answer"]

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`; works on a stopped process as well."""
        self._process.kill()
        self._process.wait(10)
        self._process.stdin.close()


class Place:
    """`url` is what the settings say, or `sqlite:` and the data directory."""

    def __init__(self, url: str, server: ZookeeperServer | None = None) -> None:
        self.url = url
        self._server = server
        self._opened: list[Coordination] = []
        self._others: list[Other] = []

    def open(self, timeout_ms: int = TIMEOUT_MS) -> Coordination:
        """Another session, in this process."""
        embedded = self.url.startswith("sqlite:")
        settings = CoordinationSettings("" if embedded else self.url, timeout_ms)
        self._opened.append(connect(settings, Path(self.url.removeprefix("sqlite:"))))
        return self._opened[-1]

    def other(self, timeout_ms: int = TIMEOUT_MS) -> Other:
        self._others.append(Other(self.url, timeout_ms))
        return self._others[-1]

    @contextmanager
    def mute(self) -> Iterator[None]:
        """Nobody's heartbeat is answered."""
        if self._server is not None:
            self._server.pause()
            try:
                yield
            finally:
                self._server.resume()
            return
        file = Path(self.url.removeprefix("sqlite:")) / "coordination.db"
        code = "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.set_busy_timeout(9000);"
        code += "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read()"
        locker = subprocess.Popen(
            [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert locker.stdout.readline() == "locked\n"
            yield
        finally:
            locker.communicate()

    def close(self) -> None:
        for other in self._others:
            other.kill()
        for coordination in self._opened:
            coordination.close()


class Calls:
    """Counts the calls of a watch."""

    def __init__(self, coordination: Coordination) -> None:
        self.count = 0
        self.stop = coordination.watch(self._called)

    def _called(self) -> None:
        self.count += 1

    @contextmanager
    def expected(self, seconds: float = 2.0) -> Iterator[None]:
        """The block is followed by a call that began after it did."""
        before = self.count
        yield
        until(lambda: self.count > before, seconds, "the watcher's call")


def succeeds(call: Callable[[], object]) -> bool:
    """Whether the call went through; what is on its way back may not be there yet."""
    try:
        call()
    except errors.StrandlineError:
        return False
    return True
