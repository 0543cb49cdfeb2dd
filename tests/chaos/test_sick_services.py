"""The services and the nodes are killed and paused under load, and the clocks of the nodes are an hour apart."""

import os
import random
import threading
import time

import pytest
from cluster import SESSION_MS, Cluster, away
from ledger import Ledger
from load import Follower, start_publishers, stop_publishers, stored, until_more

import strandline
from services import until
from services.service import Service

PUBLISHERS = 4
AN_HOUR_MS = 3_600_000


class Initiator(threading.Thread):
    """Switches the event type to and fro between its storages, through random nodes."""

    def __init__(self, cluster: Cluster, urls: list[str], dice: random.Random) -> None:
        super().__init__(name="initiator")
        self._cluster, self._urls, self._dice = cluster, urls, dice
        self.stopping = threading.Event()
        self.outcomes: list[int] = []
        self.start()

    def run(self) -> None:
        while not self.stopping.wait(self._dice.uniform(0, 1)):
            storage = "other" if self.outcomes.count(201) % 2 == 0 else "default"
            self.outcomes.append(self._cluster.switch(self._dice.choice(self._urls), storage))

    def stop(self) -> None:
        self.stopping.set()
        self.join()


@pytest.mark.parametrize("cluster", ["two brokers"], indirect=True)
@pytest.mark.parametrize("seconds", [0, pytest.param(300, marks=pytest.mark.slow)])
def test_sick_services_lose_double_and_reorder_nothing(cluster: Cluster, kafka, postgres, zookeeper, seconds):
    """Each service and node is disturbed at least once, and as often as the time allows."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    nodes = [cluster.node(ahead_ms=ahead) for ahead in (0, AN_HOUR_MS)]
    urls = [node.url for node in nodes]
    cluster.create(urls[0], partitions=4)
    ledger = Ledger()
    followers = [
        Follower(lambda: strandline.open(cluster.data), cluster.name),
        Follower(lambda: strandline.connect(urls[1]), cluster.name),
    ]
    publishers = start_publishers(PUBLISHERS, urls, cluster.name, ledger, seed)
    initiator = Initiator(cluster, urls, dice)
    disturbances: list[str] = []
    began = time.monotonic()
    try:
        until_more(publishers)
        services: list[Service] = [kafka, postgres, zookeeper, *nodes]
        while len(disturbances) < len(services) or time.monotonic() < began + seconds:
            number, how = len(disturbances) % len(services), dice.choice(["kill", "pause"])
            disturbances.append(f"{how} {services[number].name}")
            with away(services[number], how):
                time.sleep(dice.uniform(0.5, 3) * SESSION_MS / 1000)  # sometimes longer than a session
            until_more(publishers)
        initiator.stop()
        until(lambda: cluster.switch(urls[0]) == 201, "a switch after the disturbances")
        until_more(publishers)
    finally:
        initiator.stop()
        stop_publishers(publishers)
    expected = stored(cluster.data, cluster.name)
    ledger.check(expected)
    for follower in followers:
        follower.check(expected)
    with cluster.coordination() as seen:
        until(lambda: not seen.locks(), "the release of all locks")
    owned = {timeline["topic"] for timeline in cluster.timelines(urls[0])}
    until(lambda: cluster.topics() == owned, "no orphan topic")
    cluster.delete(urls[0])
    assert [node.stop() for node in nodes] == [0, 0]
    print(  # noqa: T201
        f"seed {seed}: {len(disturbances)} disturbances, {initiator.outcomes.count(201)} of "
        f"{len(initiator.outcomes)} switches, {len(ledger.acknowledged)} acknowledged, "
        f"{sum(p.refusals.total() for p in publishers)} refusals, {time.monotonic() - began:.0f} s"
    )
