"""Publishers that record every attempt and its outcome, and readers of all stored events."""

import random
import threading
import time
from collections import Counter

import httpx
import msgspec
from ledger import Ledger

import strandline
from services import until
from strandline.errors import Unavailable

Ids = list[tuple[int, int]]
_JSON = {"Content-Type": "application/json"}


class Publisher(threading.Thread):
    """Publishes batches to random nodes.

    A refused batch is retried until it is accepted. A batch without a response may be stored, so it is not
    retried.
    """

    def __init__(self, number: int, urls: list[str], name: str, ledger: Ledger, seed: int) -> None:
        super().__init__(name=f"publisher-{number}")
        self.number, self.urls, self.path, self.ledger = number, urls, f"/event-types/{name}/events", ledger
        self.random = random.Random(f"{seed}/{number}")
        self.stopping = threading.Event()
        self.next = 0
        self.again: Ids = []
        self.answers: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.errors: list[str] = []

    @property
    def acknowledged(self) -> int:
        return self.answers.total()

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self.stopping.is_set():
                self.publish(client)

    def publish(self, client: httpx.Client) -> None:
        ids, self.again = self.again or self._new(), []
        body = msgspec.json.encode([{"publisher": p, "number": n, "pad": "x" * 50} for p, n in ids])
        url = self.random.choice(self.urls)
        self.ledger.attempt(ids)
        try:
            answer = client.post(url + self.path, content=body, headers=_JSON)
        except httpx.TransportError:
            self.stopping.wait(0.02)
            return
        if answer.status_code == 200:
            self.ledger.acknowledge(ids)
            self.answers[url] += 1
        elif answer.status_code == 503 and "Retry-After" in answer.headers:
            self.ledger.refuse(ids)
            self.again = ids
            self.refusals[url] += 1
            self.stopping.wait(0.02)
        elif answer.status_code == 207:
            self._note(ids, answer.json())
        elif answer.status_code != 504 or answer.json().get("code") != "outcome_unknown":
            self.errors.append(f"{answer.status_code} {answer.text[:200]}")

    def _new(self) -> Ids:
        first, count = self.next, self.random.choice([1, 1, 3, 20, 200])
        self.next += count
        return [(self.number, first + n) for n in range(count)]

    def _note(self, ids: Ids, items: list[dict]) -> None:
        """Record a response with one result per event: stored, or outcome unknown."""
        results = list(zip(ids, items, strict=True))
        self.ledger.acknowledge([i for i, item in results if item["publishing_status"] == "submitted"])
        failed = [item for item in items if item["publishing_status"] != "submitted"]
        self.errors += [str(item) for item in failed if item["detail"] != "outcome_unknown"]


def start_publishers(count: int, urls: list[str], name: str, ledger: Ledger, seed: int) -> list[Publisher]:
    publishers = [Publisher(number, urls, name, ledger, seed) for number in range(count)]
    for publisher in publishers:
        publisher.start()
    return publishers


def until_more(publishers: list[Publisher]) -> None:
    """Wait until every publisher has got more acknowledgements."""
    before = [publisher.acknowledged for publisher in publishers]
    until(
        lambda: all(p.acknowledged > b + 3 for p, b in zip(publishers, before, strict=True)),
        "more acknowledgements for every publisher",
    )


def stop_publishers(publishers: list[Publisher]) -> None:
    for publisher in publishers:
        publisher.stopping.set()
    for publisher in publishers:
        publisher.join()
    assert [error for publisher in publishers for error in publisher.errors] == []


def _collect(batches, found: dict[str, Ids]) -> None:
    for batch in batches:
        found.setdefault(batch.partition, []).extend((e["publisher"], e["number"]) for e in batch.events)


def stored(data, name: str) -> dict[str, Ids]:
    """The ids of every partition, in the order in which they are read."""
    found: dict[str, Ids] = {}
    with strandline.open(data) as sl:
        _collect(sl.log.read(name), found)
    return found


class Follower(threading.Thread):
    """Reads all events as they arrive, through all switches, until the event type is deleted."""

    def __init__(self, opened, name: str) -> None:
        """`opened` opens the platform, in process or over HTTP."""
        super().__init__(name="follower", daemon=True)
        self._opened, self._event_type = opened, name
        self.found: dict[str, Ids] = {}
        self._offsets: dict[str, str] = {}
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with self._opened() as sl:
                while True:
                    self._read(sl.log)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def _read(self, log) -> None:
        """Read on after the last batches, until the storage is away for too long."""
        try:
            everything = {info.partition: "BEGIN" for info in log.partitions(self._event_type)}
            for batch in log.read(self._event_type, everything | self._offsets, follow=True):
                _collect([batch], self.found)
                self._offsets[batch.partition] = batch.offset
        except Unavailable:
            time.sleep(0.1)

    def check(self, expected: dict[str, Ids]) -> None:
        """Wait for the expected number of events, and check that they are exactly the expected ones."""
        total = sum(map(len, expected.values()))
        until(lambda: self.error or sum(map(len, self.found.values())) >= total, "all events at the follower")
        if self.error is not None:
            raise self.error
        assert self.found == expected
