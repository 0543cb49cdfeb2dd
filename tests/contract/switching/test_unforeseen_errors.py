"""Switches with unexpected errors, and switches over a seal that an earlier switch left behind.

In all cases the lock is released, the switch is decided, publishers continue and the next switch succeeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from switching_place import Opener, Stop, publish, read

from services import DEADLINE_S, until
from strandline import EventType
from strandline.errors import OutcomeUnknown, StrandlineError, Unavailable
from strandline.log import StorageInfo, initiator
from strandline.log.initiator import Initiator
from strandline.log.storage.registry import SqliteConfiguration
from strandline.log.switching import Step
from strandline.platform import Platform

FORWARD = [*Step][: [*Step].index(Step.INSPECT)]
CATALOGS = pytest.mark.parametrize("opened", ["sqlite", "postgres, kafka"], indirect=True)


class Unforeseen(Exception):
    """An error that no part of the platform maps."""


@pytest.fixture
def node(opened: Opener) -> Platform:
    platform = opened()
    platform.log.create(EventType("orders"))
    publish(platform, 0)
    return platform


def breaks(step: Step, error: BaseException, *, after: bool = False) -> Callable[..., None]:
    """The step, but with an error before or after its work."""
    perform = initiator._STEPS[step]

    def broken(own: Initiator, run: object) -> None:
        if after:
            perform(own, run)
        raise error

    return broken


def switch_back_and_forth(platform: Platform) -> None:
    """Check that no lock and no undecided switch is left, that publishes succeed and that a switch succeeds."""
    until(lambda: not platform.log.node.coordination.locks(), "no lock left behind")
    assert platform.log._catalog.switches.undecided() == []
    before = read(platform)
    publish(platform, len(before))
    active = platform.log.timelines("orders")[-1].storage_id
    platform.log.admin.switch("orders", "second" if active == "first" else "first")
    publish(platform, len(before) + 1)
    assert read(platform) == [*before, len(before), len(before) + 1]


@CATALOGS
@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
def test_a_step_that_breaks(node: Platform, monkeypatch: pytest.MonkeyPatch, after: bool):
    """An error at any step aborts the switch, except after the commit: then the switch is done."""
    for step in FORWARD:
        count = len(node.log.timelines("orders"))
        done = after and step is Step.COMMIT
        with monkeypatch.context() as patch:
            patch.setitem(initiator._STEPS, step, breaks(step, Unforeseen(step), after=after))
            if done:
                assert node.log.admin.switch("orders", "second").order == count + 1
            else:
                with pytest.raises(Unforeseen):
                    node.log.admin.switch("orders", "second")
        assert len(node.log.timelines("orders")) == count + done
        switch_back_and_forth(node)


@CATALOGS
@pytest.mark.parametrize("step", [Step.ABORT, Step.UNSEAL, Step.DISCARD, Step.ANNOUNCE])
def test_a_cleanup_that_breaks(node: Platform, monkeypatch: pytest.MonkeyPatch, step: Step):
    """The caller gets the first error; other nodes and the next switch complete the cleanup."""
    with monkeypatch.context() as patch:
        patch.setitem(initiator._STEPS, Step.SNAPSHOT, breaks(Step.SNAPSHOT, Unavailable("the first")))
        patch.setitem(initiator._STEPS, step, breaks(step, Unforeseen(step)))
        with pytest.raises(Unavailable, match="the first"):
            node.log.admin.switch("orders", "second")
    until(lambda: not node.log._catalog.switches.undecided(), "the decision")
    switch_back_and_forth(node)


@CATALOGS
def test_a_commit_that_nobody_can_look_up(node: Platform, monkeypatch: pytest.MonkeyPatch):
    """If the switch can neither be read nor aborted after its commit, its outcome is unknown."""
    switches = node.log._catalog.switches
    commit = switches.commit

    def breaking(*arguments: object) -> bool:
        commit(*arguments)
        raise Unforeseen

    with monkeypatch.context() as patch:
        patch.setattr(switches, "commit", breaking)
        for step in (Step.INSPECT, Step.ABORT):
            patch.setitem(initiator._STEPS, step, breaks(step, Unforeseen(step)))
        with pytest.raises(OutcomeUnknown):
            node.log.admin.switch("orders", "second")
    assert len(node.log.timelines("orders")) == 2
    switch_back_and_forth(node)


@CATALOGS
@pytest.mark.parametrize("step", [Step.HOLD, Step.UNLOCK])
def test_a_switch_that_is_interrupted(node: Platform, monkeypatch: pytest.MonkeyPatch, step: Step):
    """After Ctrl-C in a script, the switch cleans up before the interrupt is raised."""
    with monkeypatch.context() as patch:
        patch.setitem(initiator._STEPS, step, breaks(step, KeyboardInterrupt(), after=step is Step.UNLOCK))
        with pytest.raises(KeyboardInterrupt):
            node.log.admin.switch("orders", "second")
    switch_back_and_forth(node)


@CATALOGS
def test_a_node_whose_storage_breaks_holds_nobody_up(
    opened: Opener, node: Platform, monkeypatch: pytest.MonkeyPatch
):
    """A node that cannot connect to the new topic confirms, and the switch succeeds."""
    other = opened()
    publish(other, 1)

    def breaking(_: str) -> None:
        raise Unforeseen

    monkeypatch.setattr(other.log._storages.get("second"), "make_ready", breaking)
    switch_back_and_forth(node)
    publish(other, 4)
    assert read(other) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_a_storage_that_cannot_be_opened(opened: Opener, node: Platform):
    """With a configuration that an older release accepted, only the switch fails."""
    bad = StorageInfo("bad", "sqlite", sqlite_configuration=SqliteConfiguration("x\0y"))
    node.log._catalog.storages.add(bad)
    other = opened()
    publish(other, 1)
    with pytest.raises(Unavailable, match="cannot be opened"):
        node.log.admin.switch("orders", "bad")
    switch_back_and_forth(other)
    switch_back_and_forth(node)


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_the_seal_of_an_aborted_switch_does_not_stop_the_next_one(node: Platform, monkeypatch: pytest.MonkeyPatch):
    """The next switch removes the seal, even if nothing was published since."""
    with monkeypatch.context() as patch:
        for step in (Step.SNAPSHOT, Step.UNSEAL):
            patch.setitem(initiator._STEPS, step, breaks(step, Unavailable(step)))
        with pytest.raises(Unavailable):
            node.log.admin.switch("orders", "second")
    assert node.log.admin.switch("orders", "second").order == 2
    publish(node, 1)
    assert read(node) == [0, 1]


@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_the_seal_of_a_switch_under_way_is_left_alone(
    opened: Opener, node: Platform, monkeypatch: pytest.MonkeyPatch
):
    """An initiator that was suspended and aborted does not remove the seal of the switch that runs now."""
    other = opened()
    asleep, sealed = Stop(monkeypatch, node, Step.SEAL), Stop(monkeypatch, other, Step.SNAPSHOT)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(node.log.admin.switch, "orders", "second")
        assert asleep.reached.wait(DEADLINE_S)
        other.log.admin.abort_switch("orders")
        node.log.node.coordination.unlock("orders")
        second = pool.submit(other.log.admin.switch, "orders", "second")
        assert sealed.reached.wait(DEADLINE_S)
        asleep.go.set()
        assert isinstance(first.exception(DEADLINE_S), StrandlineError)
        late = threading.Thread(target=publish, args=(node, 1))
        late.start()
        sealed.go.set()
        assert second.result(DEADLINE_S).order == 2
        late.join(DEADLINE_S)
    assert read(other) == [0, 1]
    assert node.log.timelines("orders")[0].latest_position == {"0": 0}
