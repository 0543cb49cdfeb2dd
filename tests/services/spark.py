"""A Spark cluster: a master and workers as processes, run from PySpark's own jars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from services.jars import spark_home
from services.java import JavaService
from services.process import Process, environment, free_port, is_stopped

# Applications wait for both workers, so that both get tasks.
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


class Worker(Process):
    def has_stopped_task(self) -> bool:
        """Whether a task of the worker has reached a failpoint that stops its process."""
        return self.exit_code is None and any(
            is_stopped(child.pid) for child in psutil.Process(self.pid).children(recursive=True)
        )


class SparkCluster(JavaService):
    """The service is the master; tests add workers. Drivers use the environment `env` and the master `url`."""

    name = "master"
    main = "org.apache.spark.deploy.master.Master"
    heap = "256m"
    jvm_options = ("-XX:TieredStopAtLevel=1",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"spark://127.0.0.1:{self.port}"
        self._page_port = free_port()
        self._workers: list[Worker] = []
        (self.folder / "spark-defaults.conf").write_text(_DEFAULTS)
        self.env = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(self.folder)}

    def arguments(self) -> Sequence[str]:
        return ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._page_port)]

    def options(self, **env: str) -> dict[str, Any]:
        # Spark's scripts set these, but each script starts an extra JVM only to build the command line.
        home = {"SPARK_HOME": str(spark_home()), "SPARK_SCALA_VERSION": "2.13"}
        return {"env": environment(**self.env, **home, **env)}

    def answers(self) -> bool:
        return bool(self._state())

    def add_worker(self, **env: str) -> Worker:
        """Start a worker with one core and `env`, which its tasks inherit. It joins the master by itself."""
        name = f"worker-{len(self._workers) + 1}"
        limits = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "512m")
        work = ("--work-dir", str(self.folder / name))
        command = self.java("org.apache.spark.deploy.worker.Worker", *limits, *work, self.url)
        worker = Worker(command, self.folder / f"{name}.log", cwd=self.folder, **self.options(**env))
        self._workers.append(worker)
        return worker

    def alive(self) -> int:
        """The number of workers that have joined the master."""
        return sum(worker["state"] == "ALIVE" for worker in self._state().get("workers", ()))

    def _state(self) -> dict[str, Any]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self._page_port}/json/", timeout=5)
        except httpx.TransportError:
            return {}
        # The port is open, and serves another page, before this page exists.
        return answer.json() if answer.headers.get("content-type", "").startswith("text/json") else {}

    def kill(self) -> None:
        """Kill the workers, then the master."""
        for worker in reversed(self._workers):
            worker.kill()
        super().kill()
