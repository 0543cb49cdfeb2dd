"""The job `replicate` on Spark: parallel partitions, killed workers and applications, switches of storage."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services import STRANDLINE, Process, environment, run_cli, until
from strandline.clock import system_clock
from strandline.engine.task_runner import InThisProcess
from strandline.errors import Conflict, Invalid, Unavailable
from strandline.journal import payloads
from strandline.journal.local import LocalJournal
from strandline.journal.model import Append, NewEvent, Payload
from strandline.journal.replication_task import STORES, ReplicationTask
from strandline.journal.settings import JournalSettings
from strandline.log import StorageInfo
from strandline.log.storage.registry import KafkaConfiguration
from strandline.pipeline import tasks
from strandline.pipeline.tasks import SparkReplication
from strandline.platform import Platform
from strandline.settings import Settings

PARTITIONS = 3
ENTITIES = 12
ON_ALL_ENGINES = pytest.mark.parametrize("url", ["sqlite", "postgres", "cassandra"], indirect=True)
JOB = ("pipeline", "run", "replicate", "--master", "local[2]")


@pytest.fixture(autouse=True)
def _stores_of_tasks() -> Iterator[None]:
    yield
    STORES.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    if request.param == "cassandra":
        return request.getfixturevalue("journal_keyspace")
    server = request.getfixturevalue("postgres")
    return server.url(server.new_database())


@pytest.fixture
def platform(tmp_path: Path, url: str) -> Iterator[Platform]:
    with Platform(tmp_path / "data", Settings(journal=JournalSettings(url)), system_clock()) as opened:
        opened.journals.create("orders", partitions=PARTITIONS)
        yield opened


@pytest.fixture
def journal(platform: Platform) -> LocalJournal:
    return platform.journal("orders")


def write(platform: Platform, first: int, last: int) -> None:
    """Append these seqNrs to every journal."""
    log, topic = platform.journals.action_log, platform.journals.topic("orders")
    for entity in map(str, range(ENTITIES)):
        written = []
        for number in range(first, last + 1):
            event = NewEvent(Payload("json", json.dumps({"n": number}).encode()), (), number)
            encoding, value = payloads.encode([event])
            written.append((entity, Append(number, number, encoding), value))
        log.write(topic, log.partition(topic, entity), written)


def stored(platform: Platform) -> dict[str, list[int]]:
    """The seqNrs of every journal in the store."""
    topic, store = platform.journals.topic("orders"), platform.journals.store()
    found = {}
    for entity in map(str, range(ENTITIES)):
        with store.open(topic.id, platform.journals.action_log.partition(topic, entity), entity) as journal:
            found[entity] = [row.event.seq_nr for row in journal.rows(1, 10**9)]
    return found


def lag(platform: Platform) -> int:
    pointers = platform.journals.store().pointers(platform.journals.topic("orders").id)
    return platform.log.raw.lag("orders", pointers)


def everything(last: int) -> dict[str, list[int]]:
    return {str(entity): [*range(1, last + 1)] for entity in range(ENTITIES)}


def settings(platform: Platform) -> list[str]:
    found = ["--data", str(platform.data)]
    return [*found, "--journal-url", platform.settings.journal.url] if platform.settings.journal.url else found


@ON_ALL_ENGINES
def test_partitions_are_replicated_by_tasks(spark, platform):
    write(platform, 1, 50)
    told = []
    platform.journals.replicators.process(SparkReplication(spark)).once(told.append)
    assert stored(platform) == everything(50)
    assert (told[-1].rows, told[-1].lag) == (50 * ENTITIES, {str(p): 0 for p in range(PARTITIONS)})
    assert {*platform.journals.store().pointers(platform.journals.topic("orders").id)} == {*range(PARTITIONS)}


def test_a_task_that_spark_runs_twice_is_refused(spark, platform):
    """Its result is an error as a value, so that the other partitions go on."""
    write(platform, 1, 5)
    kept: list[ReplicationTask] = []

    class Recording(InThisProcess):
        def run(self, tasks):
            kept.extend(tasks)
            return super().run(tasks)

    platform.journals.replicators.process(Recording()).once()
    again = SparkReplication(spark).run(kept)
    assert [type(result) for result in again] == [Conflict] * len(kept)
    assert stored(platform) == everything(5)


def test_an_error_of_spark_is_the_result_of_every_task(spark, platform):
    write(platform, 1, 2)
    topic = platform.journals.topic("orders")
    planner = platform.journals.replicators.process()._planner
    planned = [*planner.plan(topic, planner.look(topic)).tasks.values()]
    results = SparkReplication(spark).run([*planned[:-1], None])
    assert [type(result) for result in results] == [Unavailable] * len(planned)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_file_cannot_be_written_by_another_machine(platform, monkeypatch):
    monkeypatch.setattr("strandline.pipeline.tasks.remote_master", lambda: "spark://elsewhere:7077")
    monkeypatch.setattr("strandline.pipeline.tasks.refuse_remote", lambda _: None)
    write(platform, 1, 1)
    topic = platform.journals.topic("orders")
    planner = platform.journals.replicators.process()._planner
    task = next(iter(planner.plan(topic, planner.look(topic)).tasks.values()))
    with pytest.raises(Invalid, match=r"set journal\.url"):
        tasks._replicate(task)


def test_replication_goes_on_while_the_topic_switches_storage(spark, platform, journal, kafka):
    """Every event is stored once. Readers see all acknowledged events at any time."""
    configuration = KafkaConfiguration(kafka.bootstrap_servers)
    platform.log.admin.add_storage(StorageInfo("kafka", "kafka", kafka_configuration=configuration))
    stop, done = threading.Event(), threading.Event()
    written, told = [0], [0]

    def appending() -> None:
        while not done.is_set():
            journal.append("0", [{"n": written[0]}], expected=written[0])
            written[0] += 1

    process = platform.journals.replicators.process(SparkReplication(spark))
    threads = [
        threading.Thread(target=appending),
        threading.Thread(target=process.run, args=(stop, lambda progress: told.append(progress.rows))),
    ]
    for thread in threads:
        thread.start()
    try:
        until(lambda: written[0] > 5, "the first appends")
        for storage in ["kafka", "default", "kafka"]:
            platform.log.admin.switch("orders", storage)
            before = written[0]
            assert len([*journal.read("0")]) >= before
            until(lambda b=before: written[0] > b + 5 and told[-1] > b, "more replicated events")
    finally:
        done.set()
        threads[0].join()
        until(lambda: told[-1] >= written[0] or not threads[1].is_alive(), "the replication of everything")
        stop.set()
        threads[1].join()
    assert stored(platform)["0"] == [*range(1, written[0] + 1)]


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


@ON_ALL_ENGINES
def test_workers_that_are_killed_in_the_middle_of_a_batch(platform, start):
    """Every worker process is killed in its second chunk. The application starts others, which go on."""
    write(platform, 1, 20)
    job = start(STRANDLINE_TEST_FAILPOINT="journal.apply:kill:9")
    until(lambda: not lag(platform), "the first events")
    write(platform, 21, 40)
    until(lambda: not lag(platform), "all events")
    assert stored(platform) == everything(40)
    assert "Python worker exited unexpectedly" in job.log_file.read_text()


@ON_ALL_ENGINES
def test_an_application_that_is_killed(platform, journal, start):
    """`kill -9` of the whole application; the next one starts from the pointers of the store."""
    write(platform, 1, 100)
    job = start()
    until(lambda: not lag(platform), "the first events")
    status = until(lambda: progress_of(platform, 100 * ENTITIES), "the progress of the job")
    known = {"event_type", "rows", "rows_per_second", "lag", "worked_at", "dead_letters", "skipped"}
    assert status.keys() == known
    for first in range(101, 1101, 100):
        write(platform, first, first + 99)
    job.kill()
    assert [event.seq_nr for event in journal.read("1")] == [*range(1, 1101)]
    done = run_cli(*JOB, "--once", "--json", *settings(platform))
    assert done.returncode == 0, done.stderr.decode()
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["job"], last["event_type"], sum(last["lag"].values())) == ("replicate", "orders", 0)
    assert (lag(platform), stored(platform)) == (0, everything(1100))
    assert [event.seq_nr for event in journal.read("1")] == [*range(1, 1101)]


def progress_of(platform: Platform, rows: int) -> dict[str, object] | None:
    """What `pipeline status` shows of the job, if it has replicated so many records."""
    done = run_cli("pipeline", "status", "--json", "--data", str(platform.data))
    assert done.returncode == 0, done.stderr.decode()
    told = [one["progress"] for one in json.loads(done.stdout) if one["job"] == "replicate"]
    return next((one for one in told if one["rows"] == rows), None)
