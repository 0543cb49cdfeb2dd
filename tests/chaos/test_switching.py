"""Switches under load, with killed and paused nodes: no event is lost, repeated or reordered."""

import os
import random
import threading
import time

import pytest
from cluster import SESSION_MS, Cluster, asleep
from ledger import Ledger
from load import Follower, start_publishers, stop_publishers, stored, until_more

import strandline
from services import Server, until

NODES = 2
PUBLISHERS = 4


def disturb(dice: random.Random, cluster: Cluster, nodes: list[Server]) -> None:
    """At a random moment of a switch, kill and restart a node, or pause it until its session expires."""
    time.sleep(dice.uniform(0, 0.15))  # a random moment
    number = dice.randrange(len(nodes))
    if dice.random() < 0.5:
        nodes[number].kill()
        nodes[number] = cluster.node(port=nodes[number].port)
    else:
        with asleep(nodes[number]):
            time.sleep(SESSION_MS / 1000 * 1.5)


@pytest.mark.parametrize("switches", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cluster", ["embedded", "kafka", "two brokers"], indirect=True)
def test_switching_under_load_and_disturbance(cluster, switches):
    """Every acknowledged event is read once and in order, live and afterwards. No lock or topic is left."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    nodes = [cluster.node() for _ in range(NODES)]
    urls = [node.url for node in nodes]
    ledger = Ledger()
    cluster.create(urls[0], partitions=4)
    followers = [Follower(lambda: strandline.open(cluster.data), cluster.name) for _ in range(2)]
    publishers = start_publishers(PUBLISHERS, urls, cluster.name, ledger, seed)
    outcomes = []
    try:
        for number in range(switches):
            storage = "other" if number % 2 == 0 else "default"
            answer: list[int] = []
            initiator = threading.Thread(
                target=lambda s=storage, a=answer: a.append(cluster.switch(dice.choice(urls), s)), name="initiator"
            )
            initiator.start()
            if number % 3 != 0:
                disturb(dice, cluster, nodes)
            initiator.join()
            outcomes.append(answer[0])
            until_more(publishers)
        until(lambda: cluster.switch(urls[0]) == 201, "a switch after the disturbances")
        until_more(publishers)
    finally:
        stop_publishers(publishers)
    assert set(outcomes) <= {201, 0, 409, 503}
    expected = stored(cluster.data, cluster.name)
    ledger.check(expected)
    for follower in followers:
        follower.check(expected)
    with cluster.coordination() as seen:
        until(lambda: not seen.locks(), "the release of all locks")
    cluster.delete(urls[0])
    for node in nodes:
        node.stop()
    total = sum(len(ids) for ids in expected.values())
    print(f"seed {seed}: {switches} switches {outcomes}, {len(ledger.acknowledged)} acknowledged, {total} stored")  # noqa: T201
