"""Creates the Spark session of jobs: the same everywhere, except for the master."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

LOCAL = "local[*]"
#: What Spark raises, in Python or in the JVM.
SPARK_ERRORS = (Py4JError, PySparkException)
#: The same, and what a call raises when the JVM has ended.
LOST_ERRORS = (*SPARK_ERRORS, OSError, EOFError)

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_SETTINGS = {
    # The default options, not the extra ones: those belong to the user's spark-defaults.conf.
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
    # Times mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Batches from Spark to Python are as large as the batches that the source gives to Spark.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # The jobs show their progress themselves.
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS = {
    # No other machine connects to this driver, and the host name need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def is_local(master: str) -> bool:
    """Whether everything runs in the driver's own process; `local-cluster` does not."""
    return master.partition("[")[0] == "local"


def task_property(name: str) -> str | None:
    """A local property that the driver set for the current task; None outside of a task."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def remote_master() -> str | None:
    """The master of the current task, if the task may run on another machine than the driver."""
    master = task_property("spark.master")
    return None if master is None or is_local(master) else master


def spark_session(
    name: str = "strandline", *, master: str = LOCAL, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, created on the first call. `settings` are Spark's own and override ours."""
    # Workers need the same environment. If its path differs on a cluster, the user sets PYSPARK_PYTHON.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    chosen = {**_SETTINGS, **(_LOCAL_SETTINGS if is_local(master) else {}), **(settings or {})}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def reason(error: Exception) -> str:
    """The line of a Java or Python trace that names the cause."""
    lines = [line.strip(" :") for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(("at ", "...")) and ": " in line]
    return (causes or lines or ["no reason given"])[-1][:300]
