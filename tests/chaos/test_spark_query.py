"""A Spark query is killed repeatedly while its event type is switched between SQLite and two Kafkas."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import strandline
from services import Process
from services.kafka import Broker
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.storage.registry import KafkaConfiguration

PROGRAM = str(Path(__file__).with_name("spark_query.py"))


class Publisher(threading.Thread):
    """Publishes ascending numbers."""

    def __init__(self, log) -> None:
        super().__init__(name="publisher")
        self.log, self.count, self.stopping = log, 0, threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.02):
            self.log.publish("chaos", [{"n": self.count + n} for n in range(20)]).raise_for_failed()
            self.count += 20


def start(data: Path, folder: Path) -> Process:
    return Process([sys.executable, PROGRAM, str(data), str(folder), "follow"], folder / "query.log")


def batches(folder: Path) -> int:
    return len([*(folder / "checkpoint" / "commits").glob("[0-9]*")])


@pytest.mark.slow
def test_a_killed_query_loses_and_doubles_nothing(tmp_path, kafka):
    """After `kill -9` of driver and tasks at random moments, the files have every event once and in order."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    data, folder = tmp_path / "data", tmp_path / "query"
    folder.mkdir()
    began = time.monotonic()
    with Broker(tmp_path / "second") as second, strandline.open(data) as platform:
        log = platform.log
        for name, broker in (("first", kafka), ("second", second)):
            configuration = KafkaConfiguration(broker.bootstrap_servers)
            log.admin.add_storage(StorageInfo(name, "kafka", kafka_configuration=configuration))
        log.create(EventType("chaos", partitions=3))
        publisher = Publisher(log)
        publisher.start()
        kills = 0
        try:
            for storage in dice.choices(["first", "second", "default"], k=8):
                query = start(data, folder)
                try:
                    before = batches(folder)
                    query.until(lambda b=before: batches(folder) > b, "a batch")
                    log.admin.switch("chaos", storage)
                    time.sleep(dice.uniform(0, 2))  # a random moment
                finally:
                    query.kill()
                kills += 1
        finally:
            publisher.stopping.set()
            publisher.join()
        command = [sys.executable, PROGRAM, str(data), str(folder), "once"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        found = {int(partition): rows for partition, rows in json.loads(done.stdout).items()}
        switches = len(log.timelines("chaos")) - 1
    assert sorted(n for rows in found.values() for *_, n in rows) == [*range(publisher.count)]
    for rows in found.values():
        numbers = [n for *_, n in rows]
        assert numbers == sorted(numbers)
    seconds = round(time.monotonic() - began)
    print(f"seed {seed}: {kills} kills, {switches} switches, {publisher.count} events, {seconds} s")  # noqa: T201
