"""The JVM of Spark is killed while jobs run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pyarrow.dataset as ds

from services import DEADLINE_S, STRANDLINE, environment, run_cli, until

SPARK = ("pipeline", "run", "archive", "replicate", "--master", "local[1]")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    text = "".join(task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in text.split()]


def test_jobs_end_with_an_error_when_the_jvm_is_killed(tmp_path):
    """The command ends with exit code 3 and keeps no lease, so that another run archives at once."""
    target = ("--data", str(tmp_path))
    assert run_cli("event-types", "create", "orders", *target).returncode == 0
    env = environment(STRANDLINE_ARCHIVE__MIN_RECORDS="1")
    with (tmp_path / "spark.log").open("wb") as log:
        job = subprocess.Popen([STRANDLINE, *SPARK, *target], env=env, stdout=log, stderr=log)
    try:
        status = ("pipeline", "status", *target, "--json")
        (told,) = until(lambda: json.loads(run_cli(*status).stdout), "progress")
        assert told["progress"]["worked_at"]
        (jvm,) = [pid for pid in children(job.pid) if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(jvm, signal.SIGKILL)
        assert run_cli("publish", "orders", *target, stdin=b'{"n": 1}\n').returncode == 0
        assert job.wait(DEADLINE_S) == 3
    finally:
        job.kill()
    last = (tmp_path / "spark.log").read_text().splitlines()[-1]
    assert last.startswith("error: the JVM of Spark ended while the jobs ran")
    assert json.loads(run_cli(*status).stdout) == []
    done = run_cli("pipeline", "run", "archive", "--master", "local[1]", "--once", *target)
    assert done.returncode == 0, done.stderr.decode()
    assert ds.dataset([str(path) for path in (tmp_path / "archive").rglob("2*/**/*.parquet")]).count_rows() == 1


def test_a_missing_java_is_named(tmp_path):
    """Spark itself says only that its gateway has exited."""
    done = run_cli(*SPARK, "--data", str(tmp_path), JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.returncode == 3
    assert (
        f"error: Java: not found in JAVA_HOME ({tmp_path}/nowhere); Spark jobs need Java 17"
        in done.stderr.decode()
    )
