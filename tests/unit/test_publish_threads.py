"""The threads for publishes, with storages that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from services import DEADLINE_S
from strandline.log.publish_threads import PublishThreads


class Scene:
    """Stands for the event types: each is on the storage in `places`."""

    def __init__(self, **places: str) -> None:
        self.places = places
        self.threads = PublishThreads(self)
        self.resumed = threading.Event()

    def known(self, name: str) -> Any:
        found = self.places.get(name)
        return found and SimpleNamespace(active=SimpleNamespace(storage_id=found))

    def hang(self, name: str) -> None:
        for _ in range(100):
            self.threads.of(name).submit(self.resumed.wait, DEADLINE_S)

    def answers(self, name: str) -> bool:
        """Whether a publish to the event type is answered."""
        return self.threads.of(name).submit(lambda: True).result(DEADLINE_S)


@contextmanager
def playing(**places: str) -> Iterator[Scene]:
    scene = Scene(**places)
    try:
        yield scene
    finally:
        scene.resumed.set()
        scene.threads.close()


def test_a_storage_that_does_not_answer_holds_only_its_own_threads():
    """Event types of other storages, and those that were not looked up yet, have other threads."""
    with playing(orders="far", visits="near") as scene:
        scene.hang("orders")
        assert scene.answers("visits")
        assert scene.answers("unknown")


def test_an_event_type_moves_to_the_threads_of_its_new_storage():
    """A switch away from a storage that does not answer helps at once."""
    with playing(orders="far", visits="far") as scene:
        scene.hang("orders")
        threads = scene.threads.of("visits")
        scene.places["visits"] = "near"
        assert threads.submit(lambda: True).result(DEADLINE_S)


def test_nothing_starts_after_the_end():
    """Calls that were started are finished."""
    with playing(orders="near") as scene:
        started = scene.threads.of("orders").submit(lambda: True)
        scene.threads.close()
        assert started.result(0)
        with pytest.raises(RuntimeError):
            scene.answers("orders")
