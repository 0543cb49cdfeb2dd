"""ZooKeeper is down under load: all nodes refuse publishes, and continue when it is back."""

import os
import random
import threading
import time
from contextlib import contextmanager

import pytest
from cluster import Cluster
from ledger import Ledger
from load import Follower, Publisher, start_publishers, stop_publishers, stored, until_more

import strandline
from services import until
from services.zookeeper import ZookeeperServer

PUBLISHERS = 4
# The full form has the default session timeout; ZooKeeper's own settings grant a shorter one.
SHORT = {"session_ms": 1_000, "seconds": 1.5}
FULL = {"session_ms": 6_000, "seconds": 30}


@contextmanager
def away(zookeeper: ZookeeperServer, how: str):
    """ZooKeeper is killed and restarted with the same data, or paused and resumed."""
    if how == "kill":
        zookeeper.kill()
    else:
        zookeeper.pause()
    try:
        yield
    finally:
        if how == "kill":
            zookeeper.start()
        else:
            zookeeper.resume()


def refused_everywhere(publishers: list[Publisher], urls: list[str]):
    """A function that returns whether every node has refused every publisher since this call."""
    before = {(p, url): p.refusals[url] for p in publishers for url in urls}
    return lambda: all(p.refusals[url] > count for (p, url), count in before.items())


@pytest.mark.parametrize("cluster", ["one broker"], indirect=True)
@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize(
    "form", [pytest.param(SHORT, id="short"), pytest.param(FULL, id="30 s", marks=pytest.mark.slow)]
)
def test_nodes_outlive_zookeepers_absence(cluster: Cluster, zookeeper, how, form):
    """Publishes are 503 while ZooKeeper is down, and reads continue. Then all nodes publish and switch again."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    *nodes, leaving = [cluster.node(session_ms=form["session_ms"]) for _ in range(3)]
    urls = [node.url for node in nodes]
    cluster.create(urls[0], partitions=4)
    ledger = Ledger()
    followers = [
        Follower(lambda: strandline.open(cluster.data), cluster.name),
        Follower(lambda: strandline.connect(urls[1]), cluster.name),
    ]
    publishers = start_publishers(PUBLISHERS, urls, cluster.name, ledger, seed)
    outcome: list[int] = []
    switch = threading.Thread(target=lambda: outcome.append(cluster.switch(urls[0])))
    began = time.monotonic()
    try:
        until_more(publishers)
        switch.start()
        time.sleep(dice.uniform(0, 0.1))  # a random step of the switch
        with away(zookeeper, how):
            gone = time.monotonic()
            until(refused_everywhere(publishers, urls), "refusals by every node")
            acknowledged = len(ledger.acknowledged)
            assert cluster.switch(urls[1]) == 503
            assert leaving.stop() == 0
            time.sleep(max(0, gone + form["seconds"] - time.monotonic()))  # the length of the outage
            assert len(ledger.acknowledged) == acknowledged
        switch.join()
        assert outcome[0] in {201, 503}
        for url in urls:
            until(lambda u=url: cluster.switch(u) == 201, "a switch after the outage")
        until_more(publishers)
        with cluster.coordination() as seen:
            until(lambda: not seen.locks() and len(seen.members()) == 2, "two nodes and no lock")
    finally:
        stop_publishers(publishers)
    expected = stored(cluster.data, cluster.name)
    ledger.check(expected)
    for follower in followers:
        follower.check(expected)
    owned = {timeline["topic"] for timeline in cluster.timelines(urls[0])}
    until(lambda: cluster.topics() == owned, "no orphan topic")
    cluster.delete(urls[0])
    assert [node.stop() for node in nodes] == [0, 0]
    print(  # noqa: T201
        f"seed {seed}: ZooKeeper down for {form['seconds']} s ({how}), {len(ledger.acknowledged)} acknowledged, "
        f"{sum(p.refusals.total() for p in publishers)} refusals, {time.monotonic() - began:.0f} s"
    )
