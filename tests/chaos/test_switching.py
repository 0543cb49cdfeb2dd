"""Storages switched under load, nodes killed and put to sleep: nothing lost, doubled, reordered or left over."""

import os
import random
import signal
import threading
import time
import uuid

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from ledger import Ledger
from load import start_publishers, stop_publishers, stored

import strandline
from kafka_broker import running_broker
from services import free_port, start_server, until

NODES = 2
PUBLISHERS = 4
SESSION_MS = 1500
QUICK = {"coordination_session_timeout_ms": SESSION_MS, "log_purge_interval_ms": 1000}


class Follower(threading.Thread):
    """Reads everything as it comes, through all switches, in process."""

    def __init__(self, data) -> None:
        super().__init__(name="follower", daemon=True)
        self.data = data
        self.found: dict[str, list[tuple[int, int]]] = {}
        self.stopping = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with strandline.open(self.data) as sl:
                for batch in sl.log.read("chaos", follow=True):
                    self.found.setdefault(batch.partition, []).extend(
                        (event["publisher"], event["number"]) for event in batch.events
                    )
                    if self.stopping:
                        return
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error


def nodes_of(data, ports):
    return [start_server(data, port=port, **QUICK) for port in ports]


def switch(url: str, storage: str) -> int:
    try:
        return httpx.post(
            f"{url}/event-types/chaos/timelines", json={"storage_id": storage}, timeout=60
        ).status_code
    except httpx.TransportError:
        return 0


def disturb(dice: random.Random, nodes: list, data) -> None:
    """At a random moment of a switch: kill a node and start it anew, or let it sleep past its session."""
    time.sleep(dice.uniform(0, 0.15))  # the moment is what is random here
    number = dice.randrange(len(nodes))
    if dice.random() < 0.5:
        nodes[number].kill()
        nodes[number] = start_server(data, port=nodes[number].port, **QUICK)
    else:
        os.kill(nodes[number].pid, signal.SIGSTOP)
        time.sleep(SESSION_MS / 1000 * 1.5)
        os.kill(nodes[number].pid, signal.SIGCONT)


def kafka_storage(storage_id: str, broker) -> dict:
    configuration = {"bootstrap_servers": broker.bootstrap_servers}
    return {"id": storage_id, "storage_type": "kafka", "kafka_configuration": configuration}


@pytest.fixture(params=["sqlite", "kafka", "production"])
def storages(request, tmp_path):
    """The storages to add: `other`, and with PostgreSQL and ZooKeeper also `default`, on a broker each."""
    if request.param == "sqlite":
        yield [{"id": "other", "storage_type": "sqlite", "sqlite_configuration": {"directory": "other"}}]
        return
    kafka = request.getfixturevalue("kafka")
    if request.param == "kafka":
        yield [kafka_storage("other", kafka)]
        return
    postgres, zookeeper = (request.getfixturevalue(name) for name in ("postgres", "zookeeper"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "strandline.toml").write_text(
        f'[catalog]\nurl = "{postgres.url(postgres.new_database())}"\n'
        f'[coordination]\nurl = "zookeeper://{zookeeper.hosts}/{uuid.uuid4().hex}"\n'
    )
    (tmp_path / "second").mkdir()
    with running_broker(tmp_path / "second") as second:
        yield [kafka_storage("default", kafka), kafka_storage("other", second)]


@pytest.mark.parametrize("switches", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_switching_under_load_and_disturbance(tmp_path, storages, switches):
    """Every acknowledged event is read exactly once and in order, live and afterwards; no lock or topic stays."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    data = tmp_path / "data"
    nodes = nodes_of(data, [free_port() for _ in range(NODES)])
    urls = [node.url for node in nodes]
    ledger = Ledger()
    for storage in storages:
        httpx.post(f"{urls[0]}/storages", json=storage).raise_for_status()
    httpx.post(f"{urls[0]}/event-types", json={"name": "chaos", "partitions": 4}).raise_for_status()
    followers = [Follower(data) for _ in range(2)]
    for follower in followers:
        follower.start()
    publishers = start_publishers(PUBLISHERS, urls, ledger, seed)
    outcomes = []
    try:
        for number in range(switches):
            storage = "other" if number % 2 == 0 else "default"
            answer: list[int] = []
            initiator = threading.Thread(
                target=lambda s=storage, a=answer: a.append(switch(dice.choice(urls), s)), name="initiator"
            )
            initiator.start()
            if number % 3 != 0:
                disturb(dice, nodes, data)
            initiator.join()
            outcomes.append(answer[0])
            before = sum(publisher.answers for publisher in publishers)
            until(lambda before=before: sum(p.answers for p in publishers) > before + 8, 60, "publishers going on")
    finally:
        stop_publishers(publishers)
    assert set(outcomes) <= {201, 0, 409, 503}
    assert outcomes.count(201) >= 1
    expected = stored(data)
    ledger.check(expected)
    total = sum(len(ids) for ids in expected.values())
    for follower in followers:
        until(
            lambda f=follower: f.error or sum(map(len, f.found.values())) >= total, 30, "the follower at the end"
        )
        assert follower.error is None
        assert follower.found == expected
    httpx.delete(f"{urls[0]}/event-types/chaos").raise_for_status()
    until(lambda: not topics(data, storages), 60, "no topic left behind")
    for node in nodes:
        node.stop()
    print(f"seed {seed}: {switches} switches {outcomes}, {len(ledger.acknowledged)} acknowledged, {total} stored")  # noqa: T201


def topics(data, storages) -> list[str]:
    """Topics of this event type that are still there, wherever."""
    found = [path.stem for folder in ("topics", "other") for path in (data / folder).glob("*.db")]
    for storage in storages:
        if storage["storage_type"] == "kafka":
            quiet = {"bootstrap.servers": storage["kafka_configuration"]["bootstrap_servers"], "log_level": 0}
            found += AdminClient(quiet).list_topics(timeout=10).topics
    return [name for name in found if name.startswith("chaos.")]
