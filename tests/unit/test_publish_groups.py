"""How small publishes form groups, and who gets which outcome."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from services import until
from strandline.errors import Unavailable
from strandline.log.model import PublishReport
from strandline.log.publish_groups import PublishGroups, SmallPublish
from strandline.log.publish_threads import PublishThreads


class NoEventTypes:
    """Stands for event types that were not looked up yet: all of them share the same threads."""

    def known(self, name: str) -> None: ...


class Starts:
    """Answers every group when `released`, and records which events were together."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, list[bytes]]] = []
        self.released = threading.Event()
        self.trouble: Exception | None = None

    def start(self, name: str, group: Sequence[SmallPublish]) -> None:
        self.groups.append((name, [publish.events for publish in group]))
        self.released.wait()
        if self.trouble is not None:
            raise self.trouble
        for publish in group:
            publish.done(PublishReport(1))


@pytest.fixture
def starts() -> Starts:
    return Starts()


@pytest.fixture
def threads():
    made = PublishThreads(NoEventTypes())
    yield made
    made.close()


@pytest.fixture
def groups(starts, threads):
    yield PublishGroups(threads, starts.start)
    starts.released.set()


def test_publishes_that_arrive_during_a_group_form_the_next_one(groups, starts):
    """They keep their order, and other event types do not wait."""
    outcomes: list[object] = []
    for name, event in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4")):
        groups.add(name, SmallPublish(event, None, outcomes.append))
        until(lambda name=name: name in dict(starts.groups), "the first group")
    assert starts.groups == [("a", [b"1"]), ("b", [b"3"])]
    starts.released.set()
    until(lambda: len(outcomes) == 4, "all outcomes")
    assert starts.groups[2:] == [("a", [b"2", b"4"])]
    assert outcomes == [PublishReport(1)] * 4


def test_an_error_is_the_outcome_of_the_whole_group(groups, starts):
    """The next publish starts anew."""
    outcomes: list[object] = []
    starts.trouble = Unavailable("the catalog does not answer")
    starts.released.set()
    groups.add("a", SmallPublish(b"1", None, outcomes.append))
    until(lambda: outcomes, "the error")
    assert outcomes == [starts.trouble]
    starts.trouble = None
    groups.add("a", SmallPublish(b"2", None, outcomes.append))
    until(lambda: len(outcomes) == 2, "the report")
    assert outcomes[1] == PublishReport(1)


def test_busy_event_types_leave_threads_to_others(threads):
    """A thread yields after some groups, even if more publishes wait. At the end it serves the rest."""
    ended = threading.Event()
    outcomes: list[object] = []

    def start(name: str, group: Sequence[SmallPublish]) -> None:
        for publish in group:
            publish.done(PublishReport(1))
        if not ended.is_set() and name != "quiet":
            groups.add(name, SmallPublish(b"", None, lambda _: None))

    groups = PublishGroups(threads, start)
    try:
        for number in range(50):
            groups.add(f"busy-{number}", SmallPublish(b"", None, lambda _: None))
        groups.add("quiet", SmallPublish(b"", None, outcomes.append))
        until(lambda: outcomes, "the publish to the quiet event type")
    finally:
        ended.set()
        threads.close()
    assert groups._waiting == {}


def test_nothing_is_started_after_the_end(groups, threads):
    """The caller learns it, and nothing stays behind."""
    threads.close()
    for _ in range(2):
        with pytest.raises(Unavailable):
            groups.add("a", SmallPublish(b"1", None, pytest.fail))
