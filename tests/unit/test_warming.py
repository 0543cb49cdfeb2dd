"""Connecting to the new topics of switches, with storages that are slow or broken."""

from __future__ import annotations

import threading
from typing import Any

from services import DEADLINE_S, until
from strandline.clock import ManualClock
from strandline.errors import Unavailable
from strandline.log.model import Switch
from strandline.log.switching import State
from strandline.log.warming import Warming


class Scene:
    """Stands for the storages and every storage in them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked: list[str] = []
        self.ended = 0
        self.answering = threading.Event()
        self.warming = Warming(self, self.clock, self._end)

    def get(self, storage_id: str) -> Any:
        if storage_id == "broken":
            raise Unavailable("it is broken")
        return self

    def make_ready(self, topic: str) -> None:
        self.asked.append(topic)
        self.answering.wait(DEADLINE_S)

    def _end(self) -> None:
        self.ended += 1

    def begin(self, token: str, storage_id: str = "slow") -> None:
        self.warming.begin(Switch(token, "orders", "switch", State.PREPARING, storage_id, token, 1, "node", "now"))


def test_a_storage_that_does_not_answer_is_not_waited_for_long():
    """The caller goes on after a while, and other attempts are not delayed."""
    scene = Scene()
    scene.begin("one")
    scene.begin("two")
    until(lambda: {*scene.asked} == {"one", "two"}, "both attempts")
    assert scene.warming.underway()
    scene.clock.advance(2_000)
    assert not scene.warming.underway()
    scene.answering.set()


def test_one_attempt_per_switch():
    """Its end is reported, also after an error. A switch that has ended is forgotten."""
    scene = Scene()
    scene.answering.set()
    for _ in range(3):
        scene.begin("one")
    scene.begin("two", "broken")
    until(lambda: scene.ended == 2, "the ends")
    assert not scene.warming.underway()
    assert scene.asked == ["one"]
    scene.warming.forget_others({"two"})
    scene.begin("one")
    until(lambda: scene.asked == ["one", "one"], "a new attempt")
