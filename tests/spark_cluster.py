"""A real Spark cluster for tests: a master and workers as processes on loopback, run from PySpark's own jars."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil

from services import environment, free_port, until

_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Applications wait for both workers, so that each gets something to do before the work is done.
_DEFAULTS = """
spark.cores.max 2
spark.scheduler.minRegisteredResourcesRatio 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime 120s
spark.executor.memory 512m
spark.executor.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.driver.memory 512m
spark.driver.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.sql.shuffle.partitions 2
spark.ui.enabled false
"""


class Member:
    """The master or a worker, with all the processes it started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._family = psutil.Process(process.pid)

    def sleeps(self) -> bool:
        """Whether a task of it has come to where it was told to stop."""
        assert self._process.poll() is None, "it has ended"
        return psutil.STATUS_STOPPED in map(_status, self._family.children(recursive=True))

    def kill(self) -> None:
        """`kill -9`, with executors and their Python processes: those have a process group of their own."""
        if self._process.poll() is not None:
            return
        self._family.suspend()  # so that it does not notice who is missing
        processes = [*self._family.children(recursive=True), self._family]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(20)
        ended = (psutil.STATUS_ZOMBIE, None)  # whoever buries orphans here may take its time
        until(lambda: all(_status(process) in ended for process in processes), 20, "the end of all processes")


class SparkCluster:
    """`env` is what a driver needs to be given to run on it, with `url` as its master."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._page = f"http://127.0.0.1:{free_port()}/json/"
        self._members: list[Member] = []
        (folder / "spark-defaults.conf").write_text(_DEFAULTS)
        self.env = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(folder)}
        self._home = _spark_home()
        # What Spark's own scripts set; each of them would start one more Java to find out how to start Java.
        self._own_env = {**self.env, "SPARK_HOME": str(self._home), "SPARK_SCALA_VERSION": "2.13"}

    def start(self) -> None:
        """Return once the master answers."""
        ports = ("--port", self.url.rpartition(":")[2], "--webui-port", self._page.split(":")[2].partition("/")[0])
        self._members.append(Member(self._run("master", "master.Master", "--host", "127.0.0.1", *ports)))
        until(self._state, 60, "the master's answer")

    def add_worker(self, **env: str) -> Member:
        """With one core: one task at a time. It joins when it is ready; its tasks get the environment, too."""
        name = f"worker-{len(self._members)}"
        options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "512m")
        work = ("--work-dir", str(self.folder / name))
        worker = Member(self._run(name, "worker.Worker", *options, *work, self.url, **env))
        self._members.append(worker)
        return worker

    def alive(self) -> int:
        """How many workers the master has."""
        return sum(worker["state"] == "ALIVE" for worker in self._state().get("workers", ()))

    def _state(self) -> dict[str, Any]:
        try:
            answer = httpx.get(self._page, timeout=5)
        except httpx.TransportError:
            return {}
        return answer.json() if answer.is_success else {}  # the port answers before the page is there

    def _run(self, name: str, main: str, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [*_JAVA, "-cp", f"{self._home}/jars/*", f"org.apache.spark.deploy.{main}", *arguments],
                cwd=self.folder,
                env=environment(**self._own_env, **env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def close(self) -> None:
        for process in reversed(self._members):
            process.kill()


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _status(process: psutil.Process) -> str | None:
    """None when it is gone."""
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return None


@contextmanager
def running_spark(folder: Path) -> Iterator[SparkCluster]:
    """A master in an empty folder, which it leaves behind with its logs; workers are up to the test."""
    cluster = SparkCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
