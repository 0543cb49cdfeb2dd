"""kill -9 of the server under publishing load: what was acknowledged is there, once and in order."""

import os
import random
import socket
import threading
import time

import httpx
import msgspec
import pytest
from ledger import Ledger

import strandline
from services import free_port, start_server, until

PUBLISHERS = 4
PARTITIONS = 4


class Publisher(threading.Thread):
    """Publishes one batch after the other and writes down what it was told."""

    def __init__(self, number: int, url: str, ledger: Ledger, seed: int) -> None:
        super().__init__(name=f"publisher-{number}")
        self.number, self.url, self.ledger = number, url, ledger
        self.random = random.Random(f"{seed}/{number}")
        self.stopping = threading.Event()
        self.next = 0
        self.answers = 0
        self.errors: list[str] = []

    def run(self) -> None:
        with httpx.Client(timeout=10) as client:
            while not self.stopping.is_set():
                self.publish(client)

    def publish(self, client: httpx.Client) -> None:
        ids = [(self.number, self.next + n) for n in range(self.random.choice([1, 1, 3, 20, 200]))]
        self.next += len(ids)
        body = msgspec.json.encode([{"publisher": p, "number": n, "pad": "x" * 50} for p, n in ids])
        self.ledger.attempt(ids)
        try:
            answer = client.post(f"{self.url}/event-types/chaos/events", content=body)
        except httpx.TransportError:
            # No answer: each event may or may not be there, and is not sent again.
            self.stopping.wait(0.02)
            return
        if answer.status_code == 200:
            self.ledger.acknowledge(ids)
            self.answers += 1
        elif answer.status_code != 503:
            self.errors.append(f"{answer.status_code} {answer.text[:200]}")


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def stored(data) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    with strandline.open(data) as sl:
        for batch in sl.log.read("chaos"):
            found.setdefault(batch.partition, []).extend((e["publisher"], e["number"]) for e in batch.events)
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_killing_the_server_loses_doubles_and_reorders_nothing(tmp_path, rounds):
    """After every kill nothing listens any more; at the end every acknowledged event is there exactly once."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    port = free_port()
    server = start_server(tmp_path, port=port)
    httpx.post(f"{server.url}/event-types", json={"name": "chaos", "partitions": PARTITIONS}).raise_for_status()
    ledger = Ledger()
    publishers = [Publisher(n, server.url, ledger, seed) for n in range(PUBLISHERS)]
    began = time.monotonic()
    for publisher in publishers:
        publisher.start()
    try:
        for number in range(rounds):
            before = sum(publisher.answers for publisher in publishers)
            until(lambda before=before: sum(p.answers for p in publishers) > before + 5, 30, "five more answers")
            time.sleep(dice.uniform(0, 0.3))  # the moment of the kill is what is random here
            server.kill()
            assert not alive(server.pid)
            assert not listens(port), "something still serves after the kill"
            server = start_server(tmp_path, port=port)
            ledger_size = len(ledger.acknowledged)
            print(f"kill {number + 1}/{rounds}: {ledger_size} events acknowledged so far")  # noqa: T201
    finally:
        for publisher in publishers:
            publisher.stopping.set()
        for publisher in publishers:
            publisher.join()
        server.stop()
    assert [publisher.errors for publisher in publishers] == [[]] * PUBLISHERS
    ledger.check(stored(tmp_path))
    print(  # noqa: T201
        f"seed {seed}: {rounds} kills, {len(ledger.acknowledged)} acknowledged of {len(ledger.attempted)} "
        f"attempted events, {time.monotonic() - began:.0f} s"
    )
