"""A place for files that several processes can open, and others at it as processes of their own."""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from services import environment
from strandline import errors
from strandline.archive.files import Digest, Files, connect
from strandline.archive.files.arrow import ArrowFiles

WORKER = Path(__file__).with_name("files_worker.py")


class Other:
    """Another process. Calls are answered in order; `send` and `receive` are the halves of a call.

    At the failpoint it was started with it kills or stops itself, once.
    """

    def __init__(self, url: str, failpoint: str, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(STRANDLINE_TEST_FAILPOINT=failpoint, **env),
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
        print(json.dumps([name, *(_plain(value) for value in arguments)]), file=self._process.stdin, flush=True)

    def receive(self, seconds: float = 60.0) -> Any:
        line = self._lines.get(timeout=seconds)
        assert line, "the other process ended"
        answer = json.loads(line)
        if "error" in answer:
            raise getattr(errors, answer["error"])(answer["detail"])
        return answer["answer"]

    def ended(self, seconds: float = 60.0) -> int:
        """Wait until it has killed itself, or was killed; the signal."""
        return -self._process.wait(seconds)

    def wait_until_stopped(self) -> None:
        """At its failpoint."""
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`; works on a stopped process as well."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        self._process.stdin.close()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Digest):
        return {"digest": [value.size, value.sha256]}
    return value


class Place:
    """`url` opens it; `arrow:` before a path asks for the adapter that any other file system gets."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[Files] = []
        self._others: list[Other] = []

    def open(self) -> Files:
        if self.url.startswith("arrow:"):
            files: Files = ArrowFiles(f"file://{self.url.removeprefix('arrow:')}")
        else:
            files = connect(self.url)
        self._opened.append(files)
        return files

    def other(self, failpoint: str = "", **env: str) -> Other:
        self._others.append(Other(self.url, failpoint, env))
        return self._others[-1]

    def close(self) -> None:
        for other in self._others:
            other.kill()
        for files in self._opened:
            files.close()
