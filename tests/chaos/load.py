"""Publishers that write down what they attempted and were told."""

import random
import threading

import httpx
import msgspec
from ledger import Ledger

import strandline


class Publisher(threading.Thread):
    """Publishes one batch after the other to any of the nodes; never sends an event twice."""

    def __init__(self, number: int, urls: list[str], ledger: Ledger, seed: int) -> None:
        super().__init__(name=f"publisher-{number}")
        self.number, self.urls, self.ledger = number, urls, ledger
        self.random = random.Random(f"{seed}/{number}")
        self.stopping = threading.Event()
        self.next = 0
        self.answers = 0
        self.errors: list[str] = []

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self.stopping.is_set():
                self.publish(client)

    def publish(self, client: httpx.Client) -> None:
        ids = [(self.number, self.next + n) for n in range(self.random.choice([1, 1, 3, 20, 200]))]
        self.next += len(ids)
        body = msgspec.json.encode([{"publisher": p, "number": n, "pad": "x" * 50} for p, n in ids])
        self.ledger.attempt(ids)
        try:
            answer = client.post(f"{self.random.choice(self.urls)}/event-types/chaos/events", content=body)
        except httpx.TransportError:
            # No answer: each event may or may not be there, and is not sent again.
            self.stopping.wait(0.02)
            return
        if answer.status_code == 200:
            self.ledger.acknowledge(ids)
            self.answers += 1
        elif answer.status_code == 503:
            self.stopping.wait(0.02)
        elif answer.status_code != 207 or "outcome_unknown" not in answer.text:
            self.errors.append(f"{answer.status_code} {answer.text[:200]}")


def start_publishers(count: int, urls: list[str], ledger: Ledger, seed: int) -> list[Publisher]:
    publishers = [Publisher(number, urls, ledger, seed) for number in range(count)]
    for publisher in publishers:
        publisher.start()
    return publishers


def stop_publishers(publishers: list[Publisher]) -> None:
    for publisher in publishers:
        publisher.stopping.set()
    for publisher in publishers:
        publisher.join()
    assert [error for publisher in publishers for error in publisher.errors] == []


def stored(data) -> dict[str, list[tuple[int, int]]]:
    """The ids of every partition, in the order in which they are read."""
    found: dict[str, list[tuple[int, int]]] = {}
    with strandline.open(data) as sl:
        for batch in sl.log.read("chaos"):
            found.setdefault(batch.partition, []).extend((e["publisher"], e["number"]) for e in batch.events)
    return found
