"""Switches and publishes while the coordination service does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import strandline
from services import until
from strandline import EventType
from strandline.clock import ManualClock
from strandline.errors import LeaseLost, OutcomeUnknown, StrandlineError, Unavailable
from strandline.log.model import StorageInfo
from strandline.log.storage.registry import SqliteConfiguration
from strandline.platform import Platform
from strandline.settings import Settings

OTHER = StorageInfo("other", "sqlite", sqlite_configuration=SqliteConfiguration("other"))


@pytest.fixture
def platform(tmp_path) -> Iterator[Platform]:
    with strandline.open(tmp_path, settings=Settings.load(flags={"log.publish_wait_ms": 300})) as opened:
        opened.log.create(EventType("orders"))
        opened.log.admin.add_storage(OTHER)
        opened.log.publish("orders", [{"n": 0}]).raise_for_failed()
        yield opened


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Unavailable("away"), LeaseLost("gone")])
@pytest.mark.parametrize("verb", ["lock", "bump", "members", "relock"])
def test_a_switch_that_did_not_happen_can_be_tried_again(platform, monkeypatch, verb, error):
    """A switch that certainly did not happen is Unavailable, whichever call failed, and can be retried."""
    coordination = platform.log.node.coordination

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(coordination, verb, fails)
        with pytest.raises(Unavailable):
            platform.log.admin.switch("orders", "other")
    assert len(platform.log.timelines("orders")) == 1
    platform.log.admin.switch("orders", "other")
    platform.log.publish("orders", [{"n": 1}]).raise_for_failed()
    assert [event["n"] for batch in platform.log.read("orders") for event in batch.events] == [0, 1]


def test_an_abort_needs_nobody(platform, monkeypatch):
    """An abort needs only the catalog, not the other nodes."""
    coordination = platform.log.node.coordination
    aborted = threading.Event()

    def meanwhile() -> int:
        if not aborted.is_set():
            aborted.set()
            platform.log.admin.abort_switch("orders")
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(coordination, "bump", meanwhile)
    with pytest.raises(Unavailable):
        platform.log.admin.switch("orders", "other")
    assert aborted.is_set()
    assert platform.log.admin.current_switch("orders").state == "aborted"


class WrongClock(ManualClock):
    """A clock whose wall-clock time is changed independently of its steady time."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


@pytest.mark.parametrize("wrong_ms", [3_600_000, -3_600_000])
def test_a_wait_does_not_depend_on_the_wall_clock(tmp_path, monkeypatch, wrong_ms):
    """The wall clock may be changed while a publish waits for a switch."""
    clock = WrongClock()
    with Platform(tmp_path, Settings.load(flags={"log.publish_wait_ms": 300}), clock) as platform:
        platform.log.create(EventType("orders"))
        node = platform.log.node
        node.join()
        monkeypatch.setattr(node, "_poll", lambda: None)  # the gate stays closed
        node.gate("orders").hold()
        waiting = platform.log.submit("orders", [{"n": 1}])
        clock.wrong_ms = wrong_ms
        clock.advance(299)
        node._refuse_late()
        assert not waiting.done()
        clock.advance(1)
        node._refuse_late()
        with pytest.raises(Unavailable, match="took too long"):
            waiting.result(0)


def test_whoever_waits_for_a_switch_is_refused_in_time(platform, monkeypatch):
    """A publish that waits for a switch times out, even if the state of the switch cannot be read."""
    coordination, gate = platform.log.node.coordination, platform.log.node.gate("orders")

    def away() -> dict[str, str]:
        raise Unavailable("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(coordination, "members", away)
        gate.hold()
        waiting = platform.log.submit("orders", [{"n": 1}])
        with pytest.raises(StrandlineError, match="took too long"):
            waiting.result(20)
    until(lambda: not gate.held)
    platform.log.publish("orders", [{"n": 2}]).raise_for_failed()
    assert [event["n"] for batch in platform.log.read("orders") for event in batch.events] == [0, 2]
