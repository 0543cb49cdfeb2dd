"""A publish and the thread that waits for it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from strandline.clock import ManualClock
from strandline.errors import NotFound, OutcomeUnknown, Unavailable
from strandline.log.gate import Gate
from strandline.log.model import CatalogEntry, EventType, PublishReport, Timeline
from strandline.log.preparation import CompiledEventType
from strandline.log.publish_attempt import PreparedFor, PublishAttempt, PublishContext
from strandline.log.storage import Placed, SealableStorage

ENTRY = CatalogEntry("id", EventType("orders"), (Timeline("t", "orders", 1, "default", "topic", "now"),))
STORED = {0: Placed(range(1))}


class Answer(Future):
    """The answer to an append: given by the thread that asks for the result, or by another one."""

    def __init__(self, answer: dict[int, Placed] | BaseException | None) -> None:
        super().__init__()
        self.given = answer
        self.asked: list[threading.Thread] = []

    def answer(self, answer: dict[int, Placed] | BaseException) -> None:
        if isinstance(answer, BaseException):
            self.set_exception(answer)
        else:
            self.set_result(answer)

    def result(self, timeout: float | None = None) -> dict[int, Placed]:
        self.asked.append(threading.current_thread())
        if isinstance(self.given, KeyboardInterrupt):
            raise self.given
        if self.given is not None and not self.done():
            self.answer(self.given)
        return super().result(timeout)


class Place:
    """What a publish needs, with a storage that gives prepared answers."""

    def __init__(self) -> None:
        self.gate = Gate(10, lambda: None)
        self.answer = Answer(STORED)
        self.waits: list[bool] = []
        storage = Mock(spec=SealableStorage, append=self._append)
        compiled = CompiledEventType.of(ENTRY, 1000)
        node: Any = SimpleNamespace(gate=lambda _: self.gate, wake=lambda: None)
        event_types: Any = SimpleNamespace(compiled=lambda _: compiled, entry=lambda _: self.entry)
        storages: Any = SimpleNamespace(get=lambda _: storage)
        self.entry = ENTRY
        self.context = PublishContext(node, Mock(), storages, event_types, ManualClock())

    def _append(self, topic: str, batches: Any, *, waits: bool) -> Answer:  # noqa: ARG002 - as in the port
        self.waits.append(waits)
        return self.answer

    def attempt(self, *done: Any, prepared: PreparedFor | None = None) -> PublishAttempt:
        return PublishAttempt(self.context, "orders", [b"{}"], None, *done, prepared=prepared)


@pytest.fixture
def place() -> Place:
    return Place()


def soon() -> float:
    return time.monotonic() + 10


def test_the_waiting_thread_does_the_append(place):
    """No other thread takes part, and the gate is left."""
    attempt = place.attempt()
    attempt.enter(0)
    assert place.gate._running == 1
    assert attempt.wait(soon()) == PublishReport(1)
    attempt.hand_over()
    assert place.waits == [True]
    assert {*place.answer.asked} == {threading.current_thread()}
    assert place.gate._running == 0


def test_records_are_stored_only_for_the_event_type_that_they_were_prepared_for(place):
    """They are not prepared again, and belong to no other event type of that name."""
    entry, prepared = place.context.prepare("orders", [b"{}"], None)
    attempt = place.attempt(prepared=(entry.id, prepared))
    attempt.enter(0)
    assert attempt.wait(soon()) == PublishReport(1)
    place.entry = msgspec.structs.replace(ENTRY, id="another")
    attempt = place.attempt(prepared=(entry.id, prepared))
    attempt.enter(0)
    with pytest.raises(NotFound, match="created again"):
        attempt.wait(soon())
    assert place.waits == [True]


def test_the_waiting_thread_gets_the_error(place):
    """An error of the storage is raised by `wait`."""
    place.answer = Answer(Unavailable("away"))
    attempt = place.attempt()
    attempt.enter(0)
    with pytest.raises(Unavailable, match="away"):
        attempt.wait(soon())
    assert place.gate._running == 0


def test_an_unknown_outcome_is_reported(place):
    """The events may be stored, so the report says that the outcome is unknown."""
    place.answer = Answer(OutcomeUnknown("?"))
    attempt = place.attempt()
    attempt.enter(0)
    assert attempt.wait(soon()).items[0].detail == "outcome_unknown"


def test_without_a_waiting_thread_the_outcome_is_given_to_a_function(place):
    """The thread that completes the append calls it."""
    place.answer = Answer(None)
    outcomes: list[Any] = []
    place.attempt(outcomes.append).enter(0)
    assert (place.waits, outcomes) == ([False], [])
    with ThreadPoolExecutor(1) as storage:
        storage.submit(place.answer.answer, STORED).result(10)
    assert outcomes == [PublishReport(1)]
    assert place.gate._running == 0


def test_a_publish_that_the_gate_holds_is_finished_by_another_thread(place):
    """The thread that opens the gate starts the publish, and the waiting thread gets the report."""
    place.gate.hold()
    attempt = place.attempt()
    attempt.enter(0)
    with ThreadPoolExecutor(1) as node:
        opening = node.submit(place.gate.release)
        opening.result(10)
        assert place.waits == [False]
        node.submit(place.answer.answer, STORED)
        assert attempt.wait(soon()) == PublishReport(1)


def test_a_publish_that_the_gate_refuses_raises(place):
    """The refusal of the gate is the outcome."""
    place.gate.hold()
    attempt = place.attempt()
    attempt.enter(5)
    place.gate.expire(place.context.clock.steady_ms() + 6)
    with pytest.raises(Unavailable, match="took too long"):
        attempt.wait(soon())


@pytest.mark.parametrize("late", [STORED, NotFound("gone"), OutcomeUnknown("?")])
def test_after_a_timeout_other_threads_do_the_rest(place, late):
    """The gate is left when the storage answers."""
    place.answer = Answer(None)
    attempt = place.attempt()
    attempt.enter(0)
    with pytest.raises(TimeoutError):
        attempt.wait(time.monotonic())
    attempt.hand_over()
    assert place.gate._running == 1
    place.answer.answer(late)
    assert place.gate._running == 0


def test_after_an_interrupt_other_threads_do_the_rest(place):
    """The gate is left when the storage answers."""
    place.answer = Answer(KeyboardInterrupt())
    attempt = place.attempt()
    attempt.enter(0)
    with pytest.raises(KeyboardInterrupt):
        attempt.wait(soon())
    attempt.hand_over()
    assert place.gate._running == 1
    place.answer.given = None
    place.answer.answer(STORED)
    assert place.gate._running == 0
