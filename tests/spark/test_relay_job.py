"""The job `relay` on Spark: parallel partitions, killed workers and applications, the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services import STRANDLINE, Process, environment, run_cli, until
from strandline import EventType
from strandline.clock import system_clock
from strandline.engine.task_runner import InThisProcess
from strandline.errors import Conflict, Invalid
from strandline.pipeline import tasks
from strandline.pipeline.tasks import SparkFill
from strandline.platform import Platform
from strandline.schedule.relay.filling import STORES, FillTask
from strandline.schedule.relay.starting import Relays
from strandline.schedule.relay.values import RelayOptions
from strandline.schedule.settings import ScheduleSettings
from strandline.settings import Settings

PARTITIONS = 3
OPTIONS = RelayOptions("orders", "later", "buffer")
JOB = (
    *("pipeline", "run", "relay", "--master", "local[2]", "--relay-source", "orders", "--relay-target", "later"),
    *("--relay-schedule", "buffer"),
)


@pytest.fixture(autouse=True)
def _stores_of_tasks() -> Iterator[None]:
    yield
    STORES.close()


@pytest.fixture(params=["sqlite", "postgres"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    url = ""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        url = server.url(server.new_database())
    with Platform(tmp_path / "data", Settings(schedule=ScheduleSettings(url)), system_clock()) as opened:
        for name in ("orders", "later"):
            opened.log.create(EventType(name, partitions=PARTITIONS))
        yield opened


def publish(platform: Platform, first: int, last: int) -> None:
    platform.log.publish("orders", [{"n": n} for n in range(first, last + 1)]).raise_for_failed()


def relayed(platform: Platform) -> list[int]:
    return sorted(event["n"] for batch in platform.log.read("later") for event in batch.events)


def relays(platform: Platform) -> Relays:
    return Relays(platform.log, platform.schedules, platform.databases, platform.settings)


def settings(platform: Platform) -> list[str]:
    found = ["--data", str(platform.data), "--coordination-session-timeout-ms", "2000"]
    return [*found, "--schedule-url", platform.settings.schedule.url] if platform.settings.schedule.url else found


class Recording(InThisProcess):
    def __init__(self) -> None:
        self.kept: list[FillTask] = []

    def run(self, tasks):
        self.kept.extend(tasks)
        return super().run(tasks)


def test_partitions_are_filled_by_tasks(spark, platform):
    publish(platform, 1, 500)
    told = []
    relays(platform).process(OPTIONS, SparkFill(spark)).once(told.append)
    assert relayed(platform) == [*range(1, 501)]
    assert (told[-1].rows, told[-1].lag) == (500, {str(p): 0 for p in range(PARTITIONS)})


def test_a_task_that_spark_runs_twice_is_refused(spark, platform):
    publish(platform, 1, 50)
    runner = Recording()
    relays(platform).process(OPTIONS, runner).once()
    again = SparkFill(spark).run(runner.kept)
    assert [type(result) for result in again] == [Conflict] * PARTITIONS
    relays(platform).process(OPTIONS).once()
    assert relayed(platform) == [*range(1, 51)]


@pytest.mark.parametrize("platform", ["sqlite"], indirect=True)
def test_a_file_cannot_be_written_by_another_machine(platform, monkeypatch):
    monkeypatch.setattr("strandline.pipeline.tasks.remote_master", lambda: "spark://elsewhere:7077")
    monkeypatch.setattr("strandline.pipeline.tasks.refuse_remote", lambda _: None)
    publish(platform, 1, 1)
    runner = Recording()
    relays(platform).process(OPTIONS, runner).once()
    with pytest.raises(Invalid, match=r"set schedule\.url"):
        tasks._fill(runner.kept[0])


@pytest.fixture
def start(platform: Platform, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts the job as a process of its own."""
    started: list[Process] = []

    def start(**env: str) -> Process:
        command = [STRANDLINE, *JOB, *settings(platform)]
        started.append(Process(command, tmp_path / f"job-{len(started)}.log", env=environment(**env)))
        return started[-1]

    yield start
    for job in started:
        job.kill()


def test_an_application_that_is_killed_between_publish_and_delete(platform, start):
    """`--once` finishes its work and publishes what came since. `status` shows the job while it runs."""
    publish(platform, 1, 100)
    job = start(STRANDLINE_TEST_FAILPOINT="relay.published:kill")
    until(lambda: job.exit_code is not None, "the end of the job")
    job.kill()
    publish(platform, 101, 200)
    again = start()
    again.until(lambda: len(relayed(platform)) >= 200, "all events")
    status = until(lambda: progress_of(platform, 100), "the progress of the job")
    assert status.keys() >= {"event_type", "rows", "lag", "published", "waiting", "dead_letters"}
    assert again.terminate() == 0, again.log_tail()
    publish(platform, 201, 300)
    done = run_cli(*JOB, "--once", "--json", *settings(platform))
    assert done.returncode == 0, done.stderr.decode()
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["job"], last["event_type"], last["rows"], last["published"]) == ("relay", "orders", 100, 100)
    assert relayed(platform) == [*range(1, 301)]


def progress_of(platform: Platform, rows: int) -> dict[str, object] | None:
    """What `pipeline status` shows of the job, if it has filled so many records."""
    env = {"STRANDLINE_SCHEDULE__URL": platform.settings.schedule.url} if platform.settings.schedule.url else {}
    done = run_cli("pipeline", "status", "--json", "--data", str(platform.data), **env)
    assert done.returncode == 0, done.stderr.decode()
    told = [one["progress"] for one in json.loads(done.stdout) if one["job"] == "relay"]
    return next((one for one in told if one["rows"] >= rows), None)


def test_options_that_are_missing_are_named(platform):
    """Before Spark starts."""
    done = run_cli("pipeline", "run", "relay", "--once", *settings(platform))
    assert done.returncode == 1
    assert "--relay-source" in done.stderr.decode()
    assert b"incubator" not in done.stderr  # the first line that Spark prints
