"""A real ZooKeeper for tests and benchmarks: one process on loopback, run from PySpark's own jars."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from services import free_port, until

# Short ticks: a server grants sessions of two to twenty of them. Tests look at coordination, not at durability.
_CONFIGURATION = """
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=200
maxClientCnxns=0
forceSync=no
admin.enableServer=false
4lw.commands.whitelist=*
"""


class ZookeeperServer:
    """It keeps its port and its data over `kill` and `start`; its output is in `log_file`."""

    #: The longest session it grants.
    max_session_ms = 4_000

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_file = folder / "zookeeper.log"
        self.port = free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = folder / "zoo.cfg"
        self._settings.write_text(_CONFIGURATION.format(data=folder / "data", port=self.port))

    def start(self) -> None:
        """Return once it answers."""
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *("-cp", f"{Path(spec.origin).parent}/jars/*", main, str(self._settings)),
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(self._answers, 60, "ZooKeeper's answer")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"ZooKeeper ended:\n{self.log_file.read_text()[-3000:]}"
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")  # it says `imok` before it serves anybody
                return b"Mode:" in connection.makefile("rb").read()
        except OSError:
            return False

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None and self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait(20)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[ZookeeperServer]:
    """A server in an empty folder, which it leaves behind with its log."""
    server = ZookeeperServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
