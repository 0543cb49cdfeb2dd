"""Clients of subscriptions that use plain HTTP, as any Nakadi client does, and record every answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import strandline
from services import CLIENT, DEADLINE_S


def create_event_type(url: str, name: str, partitions: int = 4, **more: Any) -> None:
    body = {"name": name, "partitions": partitions, "partition_strategy": "hash", "partition_key_fields": ["n"]}
    CLIENT.post(f"{url}/event-types", json={**body, **more}).raise_for_status()


def vanish(data: Path, name: str) -> None:
    """Delete an event type that has a subscription, as a node does that has not seen the subscription yet."""
    with strandline.open(data) as platform:
        platform.log._catalog.delete(platform.log.types.entry(name))


def publish(url: str, name: str, numbers: range) -> None:
    events = [{"n": str(number)} for number in numbers]
    CLIENT.post(f"{url}/event-types/{name}/events", json=events).raise_for_status()


def subscribe(url: str, *names: str, read_from: str = "begin", **more: Any) -> str:
    body = {"owning_application": "test", "event_types": names, "read_from": read_from, **more}
    answer = CLIENT.post(f"{url}/subscriptions", json=body)
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()["id"]


def stats(url: str, subscription_id: str, **query: Any) -> list[dict[str, Any]]:
    """The partitions of the first event type."""
    answer = CLIENT.get(f"{url}/subscriptions/{subscription_id}/stats", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"][0]["partitions"]


def streams(url: str, subscription_id: str) -> list[str]:
    """The stream id of every partition in order, or an empty text if the partition is not assigned."""
    return [p["stream_id"] if p["state"] == "assigned" else "" for p in stats(url, subscription_id)]


@contextmanager
def open_stream(
    url: str, subscription_id: str, **parameters: Any
) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """Open a stream; yields its id and its batches, including keep-alives."""
    limits = {"batch_flush_timeout": 1, **parameters}
    path = f"{url}/subscriptions/{subscription_id}/events"
    with CLIENT.stream("GET", path, params=limits) as response:
        assert response.status_code == 200, response.read()
        yield response.headers["X-Nakadi-StreamId"], map(json.loads, response.iter_lines())


def numbers(batch: dict[str, Any]) -> list[int]:
    return [int(event["n"]) for event in batch.get("events", ())]


def commit(url: str, subscription_id: str, stream_id: str, *cursors: dict[str, Any]) -> httpx.Response:
    return CLIENT.post(
        f"{url}/subscriptions/{subscription_id}/cursors",
        json={"items": cursors},
        headers={"X-Nakadi-StreamId": stream_id},
    )


@dataclass
class Ledger:
    """When events were delivered and when their commits were confirmed, over all subscribers of a test."""

    delivered: list[tuple[float, int]] = field(default_factory=list)
    committed: dict[int, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def deliver(self, found: list[int]) -> None:
        with self.lock:
            self.delivered += [(time.monotonic(), number) for number in found]

    def acknowledge(self, found: list[int]) -> None:
        with self.lock:
            for number in found:
                self.committed.setdefault(number, time.monotonic())

    def repeated(self) -> list[int]:
        """Events that were delivered after they had been committed."""
        with self.lock:
            return [n for moment, n in self.delivered if moment > self.committed.get(n, float("inf"))]


class Subscriber(threading.Thread):
    """Reads and commits one batch after the other, and reconnects when its stream ends."""

    def __init__(self, url: str, subscription_id: str, ledger: Ledger, **parameters: Any) -> None:
        super().__init__(daemon=True)
        self.url, self.subscription_id, self.ledger = url, subscription_id, ledger
        self.parameters = {"batch_limit": 5, "max_uncommitted_events": 50, **parameters}
        self.stopping = threading.Event()
        self.stream_ids: list[str] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._read()
            except httpx.TransportError:
                self.stopping.wait(0.05)
            except AssertionError as error:
                # There is no free slot yet, or the node is stopping: retry.
                if "409" not in str(error) and "503" not in str(error):
                    self.errors.append(str(error))
                self.stopping.wait(0.05)

    def _read(self) -> None:
        with open_stream(self.url, self.subscription_id, **self.parameters) as (stream_id, batches):
            self.stream_ids.append(stream_id)
            for batch in batches:
                if self.stopping.is_set():
                    return
                if "events" in batch:
                    self._take(stream_id, batch)

    def _take(self, stream_id: str, batch: dict[str, Any]) -> None:
        found = numbers(batch)
        self.ledger.deliver(found)
        answer = commit(self.url, self.subscription_id, stream_id, batch["cursor"])
        if answer.status_code in {200, 204}:
            self.ledger.acknowledge(found)
        else:
            self.errors.append(f"{answer.status_code} {answer.text}")

    def stop(self) -> None:
        self.stopping.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()
