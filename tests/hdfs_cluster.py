"""A real HDFS for tests: a NameNode and a DataNode in one process on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hdfs_native import Client, WriteOptions

from jars import classpath
from services import free_port, until

_MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"


class HdfsCluster:
    """Its data are below its folder; its output is in `log_file`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_file = folder / "hdfs.log"
        self.port = free_port()
        self.url = f"hdfs://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once a file can be written."""
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *("java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", classpath("hadoop"), _MAIN),
                    *("-nomr", "-format", "-datanodes", "1", "-nnport", str(self.port)),
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(self._answers, 180, "HDFS's answer")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"HDFS ended:\n{self.log_file.read_text()[-3000:]}"
        try:
            with Client(self.url).create("/up", WriteOptions(overwrite=True)) as file:
                file.write(b"yes")
        except (OSError, RuntimeError):
            return False
        return True

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
def running_hdfs(folder: Path) -> Iterator[HdfsCluster]:
    """A cluster in an empty folder, which it leaves behind with its log."""
    cluster = HdfsCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
