"""Feeds over HTTP while a shard of a Cluster is down: the others go on, and it gets later what it missed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services import CLIENT, Server, until
from services.valkey import ValkeyCluster
from strandline.feeds.storage.redis_layout import list_key

FEEDS = [f"user:{number}" for number in range(30)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ValkeyCluster]:
    """One that no other test uses, because its snapshots outlive the test."""
    with ValkeyCluster(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def server(tmp_path: Path, cluster: ValkeyCluster) -> Iterator[Server]:
    env = {"STRANDLINE_FEEDS__URL": cluster.url, "STRANDLINE_FEEDS__REPLICAS": "1"}
    with Server(tmp_path / "data", env=env, logs_level="warning") as started:
        yield started


class Appender(threading.Thread):
    """Appends entries 2, 3, … to all feeds, one after the other."""

    def __init__(self, url: str) -> None:
        super().__init__(name="appender")
        self.stopping = threading.Event()
        self.acknowledged: list[str] = []
        self._url = url
        self.start()

    def run(self) -> None:
        entry = 2
        while not self.stopping.is_set():
            body = {"entry": {"id": entry}, "feeds": FEEDS}
            if CLIENT.post(f"{self._url}/feed-entries", json=body).status_code == 200:
                self.acknowledged.append(str(entry))
            entry += 1

    def until_more(self, count: int) -> None:
        goal = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= goal, "more acknowledged entries")


def read(server: Server, feeds: list[str], length: int = 5) -> dict[str, dict[str, Any]]:
    answer = CLIENT.post(f"{server.url}/feeds/get", json={"feeds": feeds, "length": length})
    assert answer.status_code == 200
    return {feed["name"]: feed for feed in answer.json()["feeds"]}


def ids(feed: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in feed.get("entries", [])]


def stop_shard(cluster: ValkeyCluster, feed: str) -> list[str]:
    """Kill the master and the replica of a feed, which come back with their data; the names of its feeds."""
    victim = cluster.master_of(list_key(feed))
    lost = [name for name in FEEDS if cluster.master_of(list_key(name)) is victim]
    (replica,) = [
        node
        for node in cluster.nodes
        if not node.is_master and str(victim.port) in bytes(node.execute("INFO", "replication")).decode()
    ]
    for node in (replica, victim):
        node.execute("SAVE")
        node.kill()
    return lost


def test_a_shard_that_is_down_does_not_stop_the_others_and_catches_up(server, cluster):
    for feed in FEEDS:
        assert CLIENT.put(f"{server.url}/feeds/{feed}", json={"entries": [{"id": 1}]}).status_code == 204
    lost = stop_shard(cluster, FEEDS[0])
    alive = [feed for feed in FEEDS if feed not in lost]
    assert alive

    appended = CLIENT.post(f"{server.url}/feed-entries", json={"entry": {"id": 7}, "feeds": FEEDS})
    assert (appended.status_code, appended.json()) == (200, {"accepted": len(alive)})
    found = read(server, FEEDS)
    assert [*found] == FEEDS
    assert all(ids(found[feed]) == ["7", "1"] for feed in alive)
    for feed in lost:
        assert (found[feed]["status"], found[feed]["code"]) == ("error", "unavailable")
        assert "entries" not in found[feed]
    assert CLIENT.get(f"{server.url}/feeds/{lost[0]}").status_code == 503
    assert CLIENT.get(f"{server.url}/feeds/{alive[0]}").status_code == 200
    replaced = CLIENT.put(f"{server.url}/feeds/{lost[0]}", json={"entries": [{"id": 9}]})
    assert replaced.status_code in {503, 504}
    assert "strandline_feed_retries" in CLIENT.get(f"{server.url}/metrics").text

    cluster.bring_back()
    until(lambda: {feed["status"] for feed in read(server, FEEDS).values()} == {"hit"}, "the shard")
    until(
        lambda: all("7" in ids(feed) for name, feed in read(server, FEEDS).items() if name != lost[0]), "retries"
    )
    until(lambda: ids(read(server, [lost[0]])[lost[0]]) == ["9"], "the retry of the set")
    assert CLIENT.get(f"{server.url}/feed-dead-letters").json() == {"items": []}


def test_acknowledged_entries_are_there_after_a_failover(server, cluster):
    """A master is killed under load and its replica takes over; its feeds get what they missed from the node."""
    for feed in FEEDS:
        assert CLIENT.put(f"{server.url}/feeds/{feed}", json={"entries": [{"id": 1}]}).status_code == 204
    appender = Appender(server.url)
    try:
        appender.until_more(20)
        cluster.master_of(list_key(FEEDS[0])).kill()
        appender.until_more(5)
        until(lambda: {feed["status"] for feed in read(server, FEEDS).values()} == {"hit"}, "the failover")
        appender.until_more(20)
    finally:
        appender.stopping.set()
        appender.join()
    written = {"1", *appender.acknowledged}
    until(lambda: all(written <= {*ids(feed)} for feed in read(server, FEEDS, 800).values()), "the retries")
    for feed in read(server, FEEDS, 800).values():
        assert ids(feed) == sorted({*ids(feed)}, key=int, reverse=True)
    assert CLIENT.get(f"{server.url}/feed-dead-letters").json() == {"items": []}
