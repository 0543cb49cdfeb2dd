"""A Spark cluster on Kafka and PostgreSQL, whose workers are killed: no row is lost or repeated."""

from __future__ import annotations

import json
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from services import STRANDLINE, Process, environment, run_cli
from services.kafka import Broker
from services.spark import SparkCluster
from social_network import SMALL, Network, create, wipe
from strandline.archive.model import hour_name
from strandline.clock import FastClock, parse_rfc3339
from strandline.log import EventType, StorageInfo
from strandline.log.storage.registry import KafkaConfiguration
from strandline.platform import Platform
from strandline.settings import Settings

NAME = "orders"
NOON = parse_rfc3339("2024-05-01T12:00:00Z")
HOUR_MS = 3_600_000
FIRST, THEN = 48_000, 6_000
SOME = 20_000
READS = str(Path(__file__).with_name("spark_cluster_reads.py"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "spark") as running:
        yield running


@pytest.fixture
def platform(tmp_path: Path, postgres, zookeeper, valkey, kafka: Broker) -> Iterator[Platform]:
    """A platform with services for several machines and an event type on Kafka. Its clock starts at noon."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "strandline.toml"
    file.write_text(
        f'[catalog]\nurl = "{postgres.url(postgres.new_database())}"\n'
        f'[coordination]\nurl = "zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}"\n'
        f'[archive]\nroot = "{tmp_path / "archive"}"\nmin_records = 1\nmax_records = 8000\ninterval_ms = 50\n'
        f"max_future_ms = {4 * HOUR_MS}\n"  # events are published up to three hours before their time
        f'[journal]\nurl = "{postgres.url(postgres.new_database())}"\n'
        f'[schedule]\nurl = "{postgres.url(postgres.new_database())}"\n'
        f'[feeds]\nrecord = false\nurl = "{valkey.url}"\n'
        f'database_url = "{postgres.url(postgres.new_database())}"\n'
    )
    with Platform(tmp_path / "data", Settings.load(file), FastClock(NOON, 1.0)) as opened:
        configuration = KafkaConfiguration(kafka.bootstrap_servers)
        opened.log.admin.add_storage(StorageInfo("kafka", "kafka", kafka_configuration=configuration))
        opened.log.create(EventType(NAME, partitions=4))
        yield opened
        opened.log.delete(NAME)


def publish(platform: Platform, numbers: range, *hours: int) -> None:
    """Publish numbered events, spread over these hours of the day."""
    times = [f"2024-05-01T{hour}:30:00Z" for hour in hours]
    events = [{"n": n, "metadata": {"occurred_at": times[n % len(times)]}} for n in numbers]
    for first in range(0, len(events), 1000):
        platform.log.publish(NAME, events[first : first + 1000]).raise_for_failed()


def start(cluster: SparkCluster, log: Path, *command: str, **env: str) -> Process:
    """Start a Spark application on the cluster."""
    return Process(command, log, env=environment(**cluster.env, **env))


def archived_rows(platform: Platform) -> int:
    standing = platform.archive.ledger.standing(NAME)
    return standing.counts.read if standing else 0


def test_the_archive_loses_a_worker(tmp_path, cluster, platform):
    """If a worker is killed during a task, every event is in one published file and all hours are flagged."""
    cluster.add_worker()
    doomed = cluster.add_worker(STRANDLINE_TEST_FAILPOINT="archive.staging:stop:4")
    publish(platform, range(FIRST), 12, 13)
    log = tmp_path / "archive.log"
    run = (STRANDLINE, "pipeline", "run", "archive", "--master", cluster.url, "--data", str(platform.data))
    now = f"{NOON + 3 * HOUR_MS + 60_000},1"
    job = start(cluster, log, *run, STRANDLINE_TEST_CLOCK=now)
    try:
        job.until(doomed.has_stopped_task, "a paused task")
        assert cluster.alive() == 2
        assert 0 < archived_rows(platform) < FIRST
        doomed.kill()
        publish(platform, range(FIRST, FIRST + THEN), 15)
        job.until(lambda: archived_rows(platform) == FIRST + THEN, "all events")
        assert cluster.alive() == 1
        hour = tmp_path / "archive" / "2024-05-01" / "14" / "_READY"
        job.until(hour.exists, "the flag of the last hour")
        assert job.terminate() == 0, job.log_tail()
    finally:
        job.kill()
    check(tmp_path / "archive", platform)


def check(archive: Path, platform: Platform) -> None:
    found: Counter[int] = Counter()
    for path in archive.rglob("*.parquet"):
        found.update(json.loads(value)["n"] for value in pq.read_table(path)["value"].to_pylist())
    assert found == dict.fromkeys(range(FIRST + THEN), 1)
    standing = platform.archive.ledger.standing(NAME)
    assert (standing.counts.balanced, standing.counts.quarantined) == (True, 0)
    done = run_cli("archive", "verify", "--data", str(platform.data), "--json")
    assert done.returncode == 0, done.stderr
    hours = {one["hour"]: one["problems"] for one in json.loads(done.stdout)}
    assert hours == {hour_name(NOON + hour * HOUR_MS): [] for hour in range(3)}
    for hour in (12, 13, 14):
        for folder in ("", NAME, f"{NAME}/data"):
            assert (archive / "2024-05-01" / str(hour) / folder / "_READY").exists()
    assert [*(archive / "_staging").rglob("*.part")] == []


def test_reads_lose_their_workers(tmp_path, cluster, platform):
    """If workers are killed during tasks of a batch read and of a stream, every row is read once."""
    in_stream = cluster.add_worker(STRANDLINE_TEST_FAILPOINT="test.stream:stop:15")
    in_batch = cluster.add_worker(STRANDLINE_TEST_FAILPOINT="test.batch:stop:5")
    publish(platform, range(SOME), 12)
    log, folder = tmp_path / "reads.log", tmp_path / "reads"
    settings = platform.data / "strandline.toml"
    job = start(cluster, log, sys.executable, READS, cluster.url, str(settings), str(folder))
    try:
        for doomed in (in_batch, in_stream):
            job.until(doomed.has_stopped_task, "a paused task")
            doomed.kill()
        assert (folder / "checkpoint" / "commits" / "0").exists()
        cluster.add_worker()
        assert job.wait() == 0, job.log_tail()
    finally:
        job.kill()
    once = {"rows": SOME, "numbers": sum(range(SOME)), "squares": sum(n * n for n in range(SOME))}
    assert json.loads((folder / "found.json").read_text()) == {"batch": once, "stream": once}


def test_the_relay_and_the_fan_out_lose_workers(tmp_path, cluster, platform, valkey):
    """Every event is relayed once, and every feed is right, also after a rebuild on the cluster."""
    valkey.flush()
    platform.log.create(EventType("later", partitions=4))
    create(platform)
    network = Network(platform)
    network.join()
    network.live(60, 1)
    publish(platform, range(THEN), 12)
    in_relay = cluster.add_worker(STRANDLINE_TEST_FAILPOINT="relay.filled:stop")
    in_fanout = cluster.add_worker(STRANDLINE_TEST_FAILPOINT="fanout.delivered:stop")
    on_cluster = ("--master", cluster.url, "--data", str(platform.data))
    options = [f"--fanout-{name}={value}" for name, value in SMALL.items()]
    options += ["--fanout-posts=posts", "--fanout-follows=follows"]
    options += [f"--relay-source={NAME}", "--relay-target=later", "--relay-schedule=buffer"]
    run = (STRANDLINE, "pipeline", "run", "relay", "fanout", *on_cluster, *options)
    job = start(cluster, tmp_path / "jobs.log", *run)
    try:
        for doomed in (in_relay, in_fanout):
            job.until(doomed.has_stopped_task, "a paused task")
            doomed.kill()
        cluster.add_worker()
        job.until(lambda: len(relayed(platform)) >= THEN, "all events")
        job.until(lambda: is_right(network), "all feeds")
        assert job.terminate() == 0, job.log_tail()
    finally:
        job.kill()
    assert sorted(relayed(platform)) == [*range(THEN)]
    wipe(network)
    users = f"--rebuild-users={','.join(network.users)}"
    done = run_cli("pipeline", "run", "rebuild", *on_cluster, users, **cluster.env)
    assert done.returncode == 0, done.stderr.decode()
    network.check()


def relayed(platform: Platform) -> list[int]:
    return [event["n"] for batch in platform.log.read("later") for event in batch.events]


def is_right(network: Network) -> bool:
    try:
        network.check()
    except AssertionError:
        return False
    return True


def test_the_replication_loses_a_worker(tmp_path, cluster, platform):
    """If a worker is killed while it writes to the store, every event is stored once and in order."""
    cluster.add_worker()
    doomed = cluster.add_worker(STRANDLINE_TEST_FAILPOINT="journal.apply:stop:3")
    platform.journals.create("accounts", partitions=4, storage="kafka")
    journal = platform.journal("accounts")
    entities = [f"account-{number}" for number in range(20)]
    for first in range(1, 41, 10):
        for entity in entities:
            journal.append(entity, [*range(first, first + 10)], expected=first - 1)
    log = tmp_path / "replicate.log"
    run = (STRANDLINE, "pipeline", "run", "replicate", "--master", cluster.url, "--data", str(platform.data))
    job = start(cluster, log, *run)
    try:
        job.until(doomed.has_stopped_task, "a paused task")
        doomed.kill()
        topic, store = platform.journals.topic("accounts"), platform.journals.store()
        job.until(
            lambda: platform.log.raw.lag("accounts", store.pointers(topic.id)) == 0, "all actions in the store"
        )
        assert job.terminate() == 0, job.log_tail()
        for entity in entities:
            partition = platform.journals.action_log.partition(topic, entity)
            with store.open(topic.id, partition, entity) as stored:
                assert [row.event.payload.data for row in stored.rows(1, 100)] == [b"%d" % n for n in range(1, 41)]
    finally:
        job.kill()
        platform.log.delete("accounts")
