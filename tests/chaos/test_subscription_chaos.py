"""Consumers and nodes of a subscription are killed and paused while its event type is switched."""

import os
import random
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cluster import SESSION_MS, Cluster, asleep
from consumer import ASLEEP_S, COMMIT_TIMEOUT_S, WINDOW
from ledger import Ledger
from load import start_publishers, stop_publishers

from journals import Cursors, Journals, Stored
from services import CLIENT, Process, Server, environment, until

PARTITIONS = 6
CONSUMERS = ["http", "http", "sdk", "sdk", "local"]


class Readers:
    """The consumers of one subscription: processes that write journals."""

    def __init__(self, cluster: Cluster, urls: list[str], subscription: str) -> None:
        self._cluster, self._urls, self._subscription = cluster, urls, subscription
        self._running: list[tuple[str, Process]] = []
        self.journals: list[Path] = []

    def start(self, kind: str) -> None:
        journal = self._cluster.data.parent / f"consumer-{len(self.journals)}-{kind}.jsonl"
        command = [sys.executable, str(Path(__file__).with_name("consumer.py")), kind, str(journal)]
        env = environment(
            PYTHONPATH=os.pathsep.join(sys.path), STRANDLINE_COORDINATION__SESSION_TIMEOUT_MS=str(SESSION_MS)
        )
        arguments = [*command, self._subscription, str(self._cluster.data), *self._urls]
        self._running.append((kind, Process(arguments, journal.with_suffix(".log"), env=env)))
        self.journals.append(journal)

    def kill(self, dice: random.Random) -> str:
        """`kill -9` a random consumer, and return its kind."""
        kind, process = self._running.pop(dice.randrange(len(self._running)))
        process.kill()
        return kind

    @contextmanager
    def one_asleep(self, dice: random.Random):
        _, process = dice.choice(self._running)
        process.pause()
        try:
            yield
        finally:
            process.resume()

    def close(self) -> None:
        for _, process in self._running:
            process.kill()


class Watch(threading.Thread):
    """Polls the committed cursors from all nodes that answer."""

    def __init__(self, urls: list[str], subscription: str) -> None:
        super().__init__(name="watch", daemon=True)
        self._paths = [f"{url}/subscriptions/{subscription}/cursors" for url in urls]
        self._stopping = threading.Event()
        self.cursors = Cursors()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        # A paused node must not block this thread.
        with httpx.Client(timeout=ASLEEP_S) as client:
            while not self._stopping.wait(0.05):
                for path in self._paths:
                    self._look(client, path)

    def _look(self, client: httpx.Client, path: str) -> None:
        try:
            answer = client.get(path)
            if answer.status_code == 200:
                self.cursors.see(answer.json()["items"])
        except httpx.TransportError:
            return
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.error = self.error or error

    def until_all_move(self) -> None:
        """Wait until a consumer has committed in every partition."""
        before = dict(self.cursors.now)
        until(
            lambda: (
                len(self.cursors.now) == PARTITIONS
                and all(place > before.get(partition, (0, 0)) for partition, place in self.cursors.now.items())
            ),
            "commits in every partition",
        )

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error


def disturb(how: str, dice: random.Random, cluster: Cluster, nodes: list[Server], readers: Readers, watch: Watch):
    """Kill or pause a node or a consumer. The others take over before it is restarted or resumed."""
    number = dice.randrange(len(nodes))
    if how == "node killed":
        nodes[number].kill()
        watch.until_all_move()
        nodes[number] = cluster.node(port=nodes[number].port)
    elif how == "consumer killed":
        kind = readers.kill(dice)
        watch.until_all_move()
        readers.start(kind)
    elif how == "node asleep":
        with asleep(nodes[number]):
            sleep_past(SESSION_MS / 1000, cluster, watch)
    else:
        with readers.one_asleep(dice):
            sleep_past(COMMIT_TIMEOUT_S, cluster, watch)
    watch.until_all_move()


def sleep_past(seconds: float, cluster: Cluster, watch: Watch) -> None:
    time.sleep(seconds * 1.5)
    # A process that is paused while it writes to a file blocks all writers of the file until it is resumed.
    if not cluster.embedded:
        watch.until_all_move()


DISTURBANCES = ["node killed", "consumer killed", "consumer asleep", "node asleep"]


@pytest.mark.parametrize("rounds", [4, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cluster", ["embedded", "one broker"], indirect=True)
def test_a_subscription_under_chaos(cluster: Cluster, rounds):
    """Every acknowledged event is delivered, cursors never go back, and committed events are not sent again."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    nodes = [cluster.node() for _ in range(2)]
    urls = [node.url for node in nodes]
    cluster.create(urls[0], PARTITIONS)
    body = {"owning_application": "chaos", "event_types": [cluster.name], "read_from": "begin"}
    subscription = CLIENT.post(f"{urls[0]}/subscriptions", json=body).json()["id"]
    readers, watch = Readers(cluster, urls, subscription), Watch(urls, subscription)
    ledger = Ledger()
    publishers = start_publishers(2, urls, cluster.name, ledger, seed)
    outcomes: list[int] = []
    began = time.monotonic()
    try:
        for kind in CONSUMERS:
            readers.start(kind)
        watch.until_all_move()
        for number in range(rounds):
            url = dice.choice(urls)
            switch = threading.Thread(target=lambda u=url: outcomes.append(cluster.switch(u)))
            switch.start()
            time.sleep(dice.uniform(0, 0.1))  # a random moment
            disturb(DISTURBANCES[number % len(DISTURBANCES)], dice, cluster, nodes, readers, watch)
            switch.join()
        until(lambda: cluster.switch(urls[0]) == 201, "a switch after the disturbances")
        watch.until_all_move()
        stop_publishers(publishers)
        until(lambda: unread(urls[0], subscription) == 0, "the commit of all events")
    finally:
        stop_publishers(publishers)
        readers.close()
        watch.stop()
    stored = Stored(cluster.data, cluster.name)
    ledger.check(stored.ids)
    journals = Journals(stored, WINDOW)
    for journal in readers.journals:
        journals.add(journal)
    journals.check(ledger.acknowledged)
    print(  # noqa: T201
        f"seed {seed}: {rounds} disturbances, {outcomes.count(201) + 1} switches, {len(ledger.acknowledged)} "
        f"acknowledged, "
        f"{journals.deliveries} delivered in {len(journals.opened_at)} streams, {time.monotonic() - began:.0f} s"
    )
    for node in nodes:
        node.stop()


def unread(url: str, subscription: str) -> int:
    answer = CLIENT.get(f"{url}/subscriptions/{subscription}/stats")
    return sum(p["unconsumed_events"] for item in answer.json()["items"] for p in item["partitions"])
