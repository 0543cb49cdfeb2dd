"""One coordination with several sessions, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from peers import Peer
from services import until
from services.zookeeper import ZookeeperServer
from strandline import errors
from strandline.coordination.connect import connect
from strandline.coordination.port import Coordination
from strandline.coordination.settings import CoordinationSettings

WORKER = Path(__file__).with_name("coordination_worker.py")

#: Short, to keep the tests fast; a heartbeat may still be late by two thirds of it.
TIMEOUT_MS = 1_500
#: Much longer than any test waits: a session with this timeout never expires during a test.
LONG_MS = 600_000


class Place:
    """`url` is the URL of the settings, or `sqlite:` and the data directory."""

    def __init__(self, url: str, server: ZookeeperServer | None = None) -> None:
        self.url = url
        self._server = server
        self._opened: list[Coordination] = []
        self._others: list[Peer] = []

    def open(self, timeout_ms: int = TIMEOUT_MS) -> Coordination:
        """Open another session in this process."""
        embedded = self.url.startswith("sqlite:")
        settings = CoordinationSettings("" if embedded else self.url, timeout_ms)
        self._opened.append(connect(settings, Path(self.url.removeprefix("sqlite:"))))
        return self._opened[-1]

    def other(self, timeout_ms: int = TIMEOUT_MS) -> Peer:
        """Open another session in another process."""
        self._others.append(Peer(WORKER, self.url, str(timeout_ms)))
        return self._others[-1]

    @contextmanager
    def mute(self) -> Iterator[None]:
        """No heartbeat is answered inside the block."""
        if self._server is not None:
            self._server.pause()
            try:
                yield
            finally:
                self._server.resume()
            return
        file = Path(self.url.removeprefix("sqlite:")) / "coordination.db"
        code = "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.set_busy_timeout(60000);"
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
    def expected(self) -> Iterator[None]:
        """After the block, wait for a call of the watcher since the block began."""
        before = self.count
        yield
        until(lambda: self.count > before, "the watcher's call")


def is_unlocked(coordination: Coordination) -> bool:
    """Whether nobody holds a lock; a session that reconnects does not know it for a while."""
    try:
        return coordination.locks() == {}
    except errors.Unavailable:
        return False


def succeeds(call: Callable[[], object]) -> bool:
    """Whether the call succeeded; a session that reconnects refuses calls for a while."""
    try:
        call()
    except errors.StrandlineError:
        return False
    return True
