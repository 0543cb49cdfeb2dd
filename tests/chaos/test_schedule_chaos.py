"""A schedule whose nodes and consumers are killed and paused: never early, never two active leases, never lost."""

import os
import time
from collections import Counter

import pytest
from cluster import SESSION_MS, Cluster
from schedule_history import ScheduleHistory
from schedule_load import ConsumerProcess, Disturber, Producer, all_lines, left

from services import CLIENT, until

PRODUCERS = 4
CONSUMERS = 20
#: The nodes are 800 ms apart; a node that is more than 500 ms from the database gives no leases.
AHEAD_MS = (-400, 400)
#: How long a node or a consumer runs between two disturbances, and how long it is away at most.
NODE_UP_S, NODE_AWAY_S = (2.0, 8.0), 3 * SESSION_MS / 1000
CONSUMER_UP_S, CONSUMER_AWAY_S = (3.0, 30.0), 5.0


@pytest.mark.parametrize("cluster", ["postgres", "embedded"], indirect=True)
@pytest.mark.parametrize("seconds", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_a_schedule_under_chaos(cluster: Cluster, tmp_path, seconds):
    """What producers and consumers saw is checked afterwards. At the end no message is left."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    # The nodes of one data directory are on one machine and have its clock.
    nodes = [cluster.node(ahead_ms=0 if cluster.embedded else ahead) for ahead in AHEAD_MS]
    CLIENT.put(f"{nodes[0].url}/schedules/chaos", json={}).raise_for_status()
    urls = [f"{node.url}/schedules/chaos" for node in nodes]
    began = time.monotonic()
    producers = [Producer(number, urls, tmp_path, seed) for number in range(PRODUCERS)]
    consumers = [
        ConsumerProcess(("push", "pull")[number % 2], number, urls, tmp_path, seed) for number in range(CONSUMERS)
    ]
    disturbers = [Disturber(node, seed, NODE_UP_S, NODE_AWAY_S, seconds) for node in nodes]
    disturbers += [Disturber(one, seed, CONSUMER_UP_S, CONSUMER_AWAY_S, seconds) for one in consumers]
    try:
        for disturber in disturbers:
            disturber.finish()
        for producer in producers:
            producer.stop()
        until(lambda: left(urls[0]) == 0, "the deletion of all messages")
    finally:
        for part in (*disturbers, *producers):
            part.stop()
        for consumer in consumers:
            consumer.kill()
    seen = all_lines([*producers, *consumers])
    history = ScheduleHistory(seen)
    disturbances = Counter(how for disturber in disturbers for how in disturber.done)
    print(  # noqa: T201
        f"seed {seed}: {dict(disturbances)}, {history}, {time.monotonic() - began:.0f} s"
    )
    assert history.faults() == []
    assert {line["consumer"] for line in seen if line["what"] == "lease"} == {one.name for one in consumers}
    assert [node.stop() for node in nodes] == [0, 0]
