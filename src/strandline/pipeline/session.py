"""How jobs get their Spark session: the same everywhere, but for the master."""

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
#: What Spark raises, from either side of it.
SPARK_ERRORS = (Py4JError, PySparkException)

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_SETTINGS = {
    # The default ones: the extra ones are up to whoever runs Spark here, in spark-defaults.conf.
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
    # Times mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # What Spark hands to Python comes in batches as large as those that we hand to Spark.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # The jobs show their progress themselves.
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS = {
    # Nobody else talks to this driver, and the machine's name need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def is_local(master: str) -> bool:
    """Whether everything runs in the driver's own process; `local-cluster` does not."""
    return master.partition("[")[0] == "local"


def task_property(name: str) -> str | None:
    """What the driver says to the task that runs here; None outside of one."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def remote_master() -> str | None:
    """The master of the task that runs here, if it may be on another machine than the driver."""
    master = task_property("spark.master")
    return None if master is None or is_local(master) else master


def spark_session(
    name: str = "strandline", *, master: str = LOCAL, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none yet. `settings` are Spark's own and win over ours."""
    # Workers must run this very environment; on a cluster its place may differ, and whoever knows it sets it.
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
