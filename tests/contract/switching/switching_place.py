"""Helpers for tests of switches: a switch that stops at a step, and events of the event type `orders`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from services import DEADLINE_S
from strandline.log import initiator
from strandline.log.switching import Step
from strandline.platform import Platform

#: How long the topic of a removed timeline is kept.
DELAY_MS = 60_000

#: Opens another node.
Opener = Callable[[], Platform]


class Stop:
    """Makes the switches of a node wait before a step: `reached` is set there, and `go` lets them continue."""

    def __init__(self, patch: pytest.MonkeyPatch, platform: Platform, step: Step) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        perform = initiator._STEPS[step]

        def waiting(own: initiator.Initiator, run: initiator._SwitchInProgress) -> None:
            if run.switch.initiator == platform.log.node.id:
                self.reached.set()
                assert self.go.wait(DEADLINE_S)
            perform(own, run)

        patch.setitem(initiator._STEPS, step, waiting)


def publish(platform: Platform, *numbers: int) -> None:
    platform.log.publish("orders", [{"n": n} for n in numbers]).raise_for_failed()


def read(platform: Platform, start: object = "BEGIN") -> list[int]:
    return [event["n"] for batch in platform.log.read("orders", start) for event in batch.events]
