"""A sweep never deletes the topic of a running switch or creation, even if the clock of its node is wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from switching_place import Opener, Stop, publish, read

from services import DEADLINE_S, until
from strandline import EventType
from strandline.clock import ManualClock
from strandline.errors import Conflict, NotFound
from strandline.log.switching import Step
from strandline.platform import Platform

#: How far a clock is ahead, or how long a switch takes.
QUARTER_MS = 900_000

CATALOGS = pytest.mark.parametrize("opened", ["sqlite", "postgres, kafka"], indirect=True)


@pytest.fixture
def node(opened: Opener) -> Platform:
    platform = opened()
    platform.log.create(EventType("orders"))
    publish(platform, 0)
    return platform


@CATALOGS
@pytest.mark.parametrize("step", [Step.WARM, Step.COMMIT])
def test_the_topic_of_a_switch_under_way_stays(
    opened: Opener, node: Platform, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, step: Step
):
    """The switch may take any time. Events that are acknowledged after it are found after a restart."""
    other = opened()
    stop = Stop(monkeypatch, node, step)
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(node.log.admin.switch, "orders", "second")
        assert stop.reached.wait(DEADLINE_S)
        clock.advance(QUARTER_MS)
        other.log.upkeep.run()
        stop.go.set()
        assert switching.result(DEADLINE_S).order == 2
    publish(node, 1)
    other.log.upkeep.run()
    assert read(other) == read(opened()) == [0, 1]


@CATALOGS
def test_the_topic_of_an_aborted_switch_goes(opened: Opener, node: Platform, monkeypatch: pytest.MonkeyPatch):
    """The topic is deleted even if a sweep runs between the abort and the creation of the topic."""
    other = opened()
    stop = Stop(monkeypatch, node, Step.CREATE)
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(node.log.admin.switch, "orders", "second")
        assert stop.reached.wait(DEADLINE_S)
        topic = other.log.admin.abort_switch("orders").topic
        other.log.upkeep.run()
        stop.go.set()
        assert switching.exception(DEADLINE_S) is not None
    other.log.upkeep.run()
    with pytest.raises(NotFound):
        other.log._storages.get("second").bounds(topic)
    assert other.log._catalog.topics_to_delete() == []
    publish(node, 1)
    assert read(other) == [0, 1]


@CATALOGS
def test_the_topic_of_a_switch_goes_with_its_event_type(
    opened: Opener, node: Platform, monkeypatch: pytest.MonkeyPatch
):
    """If the event type is deleted during a switch, the switch fails and its topic is deleted."""
    other = opened()
    stop = Stop(monkeypatch, node, Step.COMMIT)
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(node.log.admin.switch, "orders", "second")
        assert stop.reached.wait(DEADLINE_S)
        topic = node.log.admin.current_switch("orders").topic
        other.log.delete("orders")
        stop.go.set()
        assert switching.exception(DEADLINE_S) is not None
    other.log.upkeep.run()
    with pytest.raises(NotFound):
        other.log._storages.get("second").bounds(topic)
    until(lambda: not other.log.node.coordination.locks(), "no lock left behind")


@CATALOGS
def test_a_topic_that_got_its_owner_after_it_was_listed_stays(
    opened: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """The sweep asks the catalog again before it deletes a topic."""
    node, other = opened(), opened()
    create = node.log._catalog.create
    listed = other.log._catalog.topics_to_delete

    def created_late(*arguments: object) -> None:
        clock.advance(QUARTER_MS)

        def then_created() -> list[tuple[str, str]]:
            topics = listed()
            create(*arguments)
            return topics

        monkeypatch.setattr(other.log._catalog, "topics_to_delete", then_created)
        other.log.upkeep.sweep()

    monkeypatch.setattr(node.log._catalog, "create", created_late)
    node.log.create(EventType("orders"))
    publish(node, 0)
    assert read(opened()) == [0]


@CATALOGS
def test_an_event_type_is_not_created_over_a_swept_topic(
    opened: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """A creation that took too long is a Conflict, and a second attempt succeeds."""
    node, other = opened(), opened()
    create = node.log._catalog.create

    def created_late(*arguments: object) -> None:
        clock.advance(QUARTER_MS)
        other.log.upkeep.run()
        create(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(node.log._catalog, "create", created_late)
        with pytest.raises(Conflict, match="try again"):
            node.log.create(EventType("orders"))
    node.log.create(EventType("orders"))
    publish(node, 0)
    assert read(other) == [0]
