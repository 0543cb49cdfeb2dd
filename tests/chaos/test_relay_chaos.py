"""`kill -9` of the Spark application of a relay, and of the server, while events are published."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import httpx
import pytest

import strandline
from services import STRANDLINE, Process, Server, environment
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.ranges import patiently
from strandline.log.storage.registry import KafkaConfiguration
from strandline.platform import Platform
from strandline.schedule.relay.rules import ORIGIN

OPTIONS = ("--relay-source", "orders", "--relay-target", "later", "--relay-schedule", "buffer")
SHORT = {"STRANDLINE_COORDINATION__SESSION_TIMEOUT_MS": "2000"}
MOST_DELAY_MS = 3_000


class Publisher(threading.Thread):
    """Publishes over HTTP, and does not care about answers: the log shows what was stored."""

    def __init__(self, server: Server, seed: int) -> None:
        super().__init__(name="publisher")
        self.url = f"{server.url}/event-types/orders/events"
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.count = 0

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self.stopping.wait(0.05):
                try:
                    client.post(self.url, json=[self.event() for _ in range(self.random.randrange(1, 40))])
                except httpx.TransportError:
                    continue

    def event(self) -> dict[str, int]:
        self.count += 1
        return {"n": self.count, "due": time.time_ns() // 1_000_000 + self.random.randrange(MOST_DELAY_MS)}

    def stop(self) -> None:
        self.stopping.set()
        self.join()


def start(data: Path, log: Path) -> Process:
    command = [STRANDLINE, "pipeline", "run", "relay", "--master", "local[2]", "--data", str(data), *OPTIONS]
    return Process([*command, "--relay-due-field", "due"], log, env=environment(**SHORT))


class Counted:
    """Counts the events of an event type, each time only the new ones.

    A call reads for a second at most: the event type may grow while it is read.
    """

    def __init__(self, platform: Platform, name: str) -> None:
        self._reader = platform.log.types.reader(name, "BEGIN")
        self._count = 0

    def __call__(self) -> int:
        deadline = time.monotonic() + 1
        while batches := patiently(lambda: self._reader.poll(100_000, 64 << 20)):
            self._count += sum(map(len, batches))
            if time.monotonic() > deadline:
                break
        return self._count


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_every_event_is_relayed_once_however_often_its_processes_die(request, tmp_path, rounds, engine):
    """Each round kills the Spark application and the server. Source and target show the result."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    began = time.monotonic()
    data, log = tmp_path / "data", tmp_path / "spark.log"
    with closing(strandline.open(data)) as platform:
        prepare(platform, request, engine)
        published, relayed = Counted(platform, "orders"), Counted(platform, "later")
        server = Server(data, env=SHORT).start()
        publisher = Publisher(server, seed)
        publisher.start()
        running: list[Process] = []
        try:
            for number in range(rounds):
                before = relayed()
                running.append(start(data, log))
                running[-1].until(lambda b=before: relayed() > b, "relayed events")
                time.sleep(dice.uniform(0, 4))  # a random moment
                server.kill()
                # Every third kill is of the Python driver only: its JVM and workers must detect that and end.
                (running[-1].kill_alone if number % 3 == 2 else running[-1].kill)()
                server.start()
                print(f"kill {number + 1}/{rounds}: {relayed()} events so far")  # noqa: T201
            publisher.stop()
            running.append(start(data, log))
            running[-1].until(lambda: relayed() >= published(), "all events")
            assert running[-1].terminate() == 0, running[-1].log_tail()
        finally:
            publisher.stop()
            for process in running:
                process.kill()
            server.stop()
        count = check(platform)
    seconds = time.monotonic() - began
    print(f"seed {seed}: {rounds} kills of each, {count} events, {seconds:.0f} s")  # noqa: T201


def prepare(platform: Platform, request: pytest.FixtureRequest, engine: str) -> None:
    if engine == "kafka":
        servers = request.getfixturevalue("kafka").bootstrap_servers
        storage = StorageInfo("kafka", "kafka", kafka_configuration=KafkaConfiguration(servers))
        platform.log.admin.add_storage(storage)
        platform.log.admin.set_default_storage("kafka")
    for name in ("orders", "later"):
        platform.log.create(EventType(name, partitions=2))


def check(platform: Platform) -> int:
    """Every event of the source is in the target once, unchanged, and not before its time."""
    own = platform.log.types.entry("orders").id
    source = {
        f"orders/{own}/{batch.partition}/001-{batch.timeline:04x}-{row['offset']:018d}": row["value"]
        for batch in platform.log.read("orders")
        for row in batch.records.to_pylist()
    }
    found: Counter[str] = Counter()
    for batch in platform.log.read("later"):
        for row in batch.records.to_pylist():
            origin = {header["key"]: header["value"] for header in row["headers"]}[ORIGIN].decode()
            found[origin] += 1
            assert row["value"] == source[origin]
            assert row["timestamp"] >= json.loads(row["value"])["due"], "an event was relayed before its time"
    assert {name for name, times in found.items() if times > 1} == set(), "events were published twice"
    assert found.keys() == source.keys(), "events are missing"
    return len(source)
