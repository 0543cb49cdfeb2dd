"""`strandline up` runs the node and the jobs: one command, one Ctrl-C, and jobs that come back."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil
import pytest

from services import CLIENT, DEADLINE_S, Up, run_cli, until

JOBS = ["archive", "replicate"]


def ready(up: Up) -> dict[str, Any]:
    return CLIENT.get(f"{up.url}/ready").json()


def states(up: Up) -> list[str]:
    return [job["state"] for job in ready(up)["jobs"]]


def until_running(up: Up) -> None:
    until(lambda: states(up) == ["running"] * len(JOBS), "running jobs")


def family_of(up: Up) -> list[psutil.Process]:
    return psutil.Process(up.pid).children(recursive=True)


def pipeline_of(up: Up) -> psutil.Process:
    """The process of the jobs, which starts after a check of Java in a process of its own."""

    def found() -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [
                one for one in psutil.Process(up.pid).children() if "strandline.pipeline.child" in one.cmdline()
            ]
        return []

    return until(found, "the process of the jobs")[0]


def until_ended(processes: Sequence[psutil.Process]) -> None:
    def alive() -> list[psutil.Process]:
        return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    def none_alive() -> bool:
        with suppress(psutil.NoSuchProcess):
            return not alive()
        return False

    until(none_alive, "the end of all processes")


@pytest.fixture(scope="module")
def up(tmp_path_factory) -> Up:
    with Up(tmp_path_factory.mktemp("up") / "data", shift="2s") as started:
        until_running(started)
        yield started


def test_an_event_gets_into_a_flagged_file_and_is_shown(up: Up):
    """An event of a past hour is archived after a short shift, and its hour is flagged."""
    past_ms = int((time.time() - 3600) * 1000)
    made = CLIENT.post(f"{up.url}/event-types", json={"name": "visits"})
    assert made.status_code == 201, made.text
    event = {"page": "/", "metadata": {"occurred_at": past_ms}}
    assert CLIENT.post(f"{up.url}/event-types/visits/events", json=[event]).status_code == 200
    root = up.folder / up.name / "archive"
    flag = until(lambda: [*root.glob("*/*/visits/data/_READY")], "the flag")[0]
    listed = [file["name"] for file in json.loads(flag.read_text())["files"]]
    assert [path.name for path in flag.parent.glob("*.parquet")] == listed
    until(lambda: "visits: 1 row, lag 0" in up.log_file.read_text(), "the status line")


def test_jobs_that_are_killed_come_back_while_the_node_serves(up: Up):
    """The node stays ready, `/ready` and `doctor` show the jobs, and they run again in another process."""
    before, family = pipeline_of(up), family_of(up)
    before.kill()
    until(lambda: states(up) == ["restarting"] * len(JOBS), "the restart")
    shown = ready(up)
    assert shown["status"] == "degraded"
    assert "signal 9; next start in" in shown["jobs"][0]["detail"]
    checks = json.loads(run_cli("doctor", "--url", up.url, "--json").stdout)
    assert [check["name"] for check in checks if check["name"].startswith("job ")] == [
        "job archive",
        "job replicate",
    ]
    until_ended(family)
    until_running(up)
    assert ready(up)["status"] == "ready"
    assert pipeline_of(up).pid != before.pid
    done = run_cli("doctor", "--data", str(up.folder / up.name), "--json")
    (jobs,) = [check for check in json.loads(done.stdout) if check["name"] == "jobs"]
    assert jobs["detail"].startswith("archive, replicate running")


def test_ctrl_c_ends_everything(up: Up):
    """The exit code is 0, no process is left, and every job says that it has stopped."""
    until_running(up)
    family = family_of(up)
    assert len(family) >= 2  # Python and its JVM
    os.kill(up.process.pid, signal.SIGINT)
    assert up.process.wait() == 0
    until_ended(family)
    assert "killed" not in up.log_file.read_text()
    for job in JOBS:
        said = [line.split()[1] for line in up.log_file.read_text().splitlines() if line.startswith(f"  {job} ")]
        assert (said[0], said[-1]) == ("starting", "stopped")


def test_no_job_outlives_a_node_that_is_killed(tmp_path):
    """The jobs notice the end of the node, also while Spark starts."""
    with Up(tmp_path / "data") as up:
        family = [pipeline_of(up)]
        up.kill()
        until_ended(family)


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path):
    """The node does not wait for a job that does not stop."""
    with Up(tmp_path / "data", server_drain_timeout_ms=int(DEADLINE_S * 1000)) as up:
        pipeline_of(up).suspend()
        family = family_of(up)
        os.kill(up.process.pid, signal.SIGINT)
        until(lambda: '"message": "stopping"' in up.log_file.read_text(), "the drain")
        os.kill(up.process.pid, signal.SIGINT)
        assert up.process.wait() == 128 + signal.SIGINT
        until_ended(family)


def test_a_job_that_is_configured_runs_and_one_that_fails_comes_back(tmp_path):
    """A relay of the settings file: it fails until its event types exist; the other jobs run meanwhile."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "strandline.toml").write_text('[relay]\nsource = "visits"\ntarget = "later"\nschedule = "buffer"\n')
    with Up(data, relay_delay_ms=100) as up:
        until(lambda: states(up) == ["running", "running", "restarting"], "the failure of the relay")
        (relay,) = [job for job in ready(up)["jobs"] if job["job"] == "relay"]
        assert re.fullmatch(r".*'visits'.*; next start in \d+ s", relay["detail"])
        until(
            lambda: doctors(up) == {"job archive": "ok", "job replicate": "ok", "job relay": "warn"},
            "the warning of doctor",
        )
        pauses = until(lambda: found if len(found := pauses_of(up, "relay")) > 2 else None, "three restarts")
        assert pauses[:3] == [1, 2, 4]
        for name in ("later", "visits"):
            CLIENT.post(f"{up.url}/event-types", json={"name": name}).raise_for_status()
        CLIENT.post(f"{up.url}/event-types/visits/events", json=[{"page": "/"}]).raise_for_status()
        until(lambda: states(up) == ["running"] * 3, "the relay")
        until(
            lambda: (
                b'"page":"/"'
                in run_cli("consume", "later", "--start", "BEGIN", "--limit", "1", "--url", up.url).stdout
            ),
            "the event",
        )


def doctors(up: Up) -> dict[str, str]:
    """What `doctor` says of the jobs."""
    checks = json.loads(run_cli("doctor", "--url", up.url, "--json").stdout)
    return {check["name"]: check["status"] for check in checks if check["name"].startswith("job ")}


def pauses_of(up: Up, job: str) -> list[int]:
    """The pauses that the status lines of a job have named."""
    return [
        int(text)
        for text in re.findall(rf"^  {job} .* next start in (\d+) s$", up.log_file.read_text(), re.MULTILINE)
    ]


def test_without_java_the_node_runs_alone_and_says_what_is_missing(tmp_path):
    """The node is degraded, and no process is started."""
    with Up(tmp_path / "data", env={"PATH": str(tmp_path), "JAVA_HOME": ""}) as up:
        until(lambda: states(up) == ["not_started"] * len(JOBS), "the check of Java")
        assert ready(up)["status"] == "degraded"
        assert "Java" in ready(up)["jobs"][0]["detail"]
        assert (
            "archive    not started: Java: not found; Spark jobs need Java 17 or newer" in up.log_file.read_text()
        )
        assert family_of(up) == []
        assert CLIENT.post(f"{up.url}/event-types", json={"name": "visits"}).status_code == 201


def test_a_shift_is_a_flag_of_its_own(tmp_path):
    """A shift that is too short is refused before anything starts."""
    done = run_cli("up", "--data", str(tmp_path / "data"), "--shift", "1ms")
    assert done.returncode == 2
    assert b"archive.duration_ms must be at least 1000" in done.stderr
