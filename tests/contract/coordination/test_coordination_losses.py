"""The contract of every coordination when processes crash or are paused, and when the server does not answer."""

from __future__ import annotations

import pytest
from coordination_place import TIMEOUT_MS, Calls, Place, is_unlocked, succeeds

from peers import Peer
from services import until
from strandline.clock import boot_ms
from strandline.coordination.port import Coordination
from strandline.errors import LeaseLost


def everything(coordination: Coordination) -> tuple[dict[str, str], dict[str, str]]:
    return coordination.members(), coordination.locks()


@pytest.fixture
def owner(place: Place, coordination: Coordination) -> Peer:
    """A member with a lock, in another process."""
    other = place.other()
    other.call("join", "there", "1")
    other.call("lock", "orders", "theirs")
    assert everything(coordination) == ({"there": "1"}, {"orders": "theirs"})
    return other


def test_what_a_killed_process_had_vanishes(coordination: Coordination, owner: Peer):
    """After a SIGKILL member and lock expire, watchers are called, and others can take the lock."""
    calls = Calls(coordination)
    until(lambda: calls.count)
    with calls.expected():
        owner.kill()
    until(lambda: everything(coordination) == ({}, {}))
    assert coordination.lock("orders", "mine")


def test_what_a_sleeping_process_had_vanishes(coordination: Coordination, owner: Peer):
    """A process that is paused for longer than the session timeout loses its session."""
    calls = Calls(coordination)
    until(lambda: calls.count)
    with calls.expected():
        owner.stop()
    until(lambda: everything(coordination) == ({}, {}))
    assert coordination.lock("orders", "mine")


def test_a_short_sleep_harms_nobody(place: Place, coordination: Coordination):
    """A process that is paused for less than its session timeout keeps everything."""
    owner = place.other(timeout_ms=20 * TIMEOUT_MS)
    owner.call("join", "there", "1")
    owner.call("lock", "orders", "theirs")
    owner.stop()
    end_ms = boot_ms() + TIMEOUT_MS
    until(lambda: boot_ms() > end_ms)
    owner.wake()
    owner.call("relock", "orders", "still theirs")
    assert everything(coordination) == ({"there": "1"}, {"orders": "still theirs"})


def test_a_sleeper_is_not_sure_when_it_wakes(coordination: Coordination, owner: Peer):
    """The first answer of `sure` after the pause is False, and stays False until the process has joined again."""
    owner.send("nap", TIMEOUT_MS)
    assert owner.receive() == "awake"
    owner.stop()
    end_ms = boot_ms() + TIMEOUT_MS
    until(lambda: boot_ms() > end_ms and everything(coordination) == ({}, {}))
    owner.wake()
    assert owner.receive() is False
    with pytest.raises(LeaseLost):
        owner.call("update", "2")
    assert owner.call("sure") is False


def test_a_sleeper_cannot_act_on_what_it_lost(coordination: Coordination, owner: Peer):
    """Its calls raise LeaseLost and do not change the lock of the new owner."""
    owner.stop()
    until(lambda: is_unlocked(coordination))
    assert coordination.lock("orders", "mine")
    owner.wake()
    with pytest.raises(LeaseLost):
        owner.call("relock", "orders", "theirs again")
    with pytest.raises(LeaseLost):
        owner.call("update", "2")
    owner.call("unlock", "orders")
    assert everything(coordination) == ({}, {"orders": "mine"})
    coordination.relock("orders", "still mine")


def test_a_sleeper_comes_back_by_joining_again(coordination: Coordination, owner: Peer):
    """It joins with the same id in a new session, and is sure after it has unlocked its lost lock."""
    owner.stop()
    until(lambda: everything(coordination) == ({}, {}))
    owner.wake()
    until(lambda: succeeds(lambda: owner.call("join", "there", "2")))
    assert owner.call("sure") is False, "its lost lock is not unlocked yet"
    owner.call("unlock", "orders")
    until(lambda: owner.call("sure"))
    assert everything(coordination) == ({"there": "2"}, {})
    owner.call("update", "3")
    assert coordination.members() == {"there": "3"}


def test_a_sleeper_is_told_of_its_loss(coordination: Coordination, owner: Peer):
    """The watchers of a paused process are called after it resumes."""
    owner.call("watch")
    until(lambda: owner.call("last_call"), "the first call, which comes without a change")
    owner.stop()
    until(lambda: is_unlocked(coordination))
    woken_ms = boot_ms()
    owner.wake()
    until(lambda: owner.call("last_call") >= woken_ms, "a call after the process resumed")


def test_without_answers_nobody_is_sure(place: Place, coordination: Coordination):
    """`sure` is False within a session timeout of the last answer; watchers are called then and on reconnect."""
    coordination.join("here", "1")
    calls = Calls(coordination)
    until(lambda: calls.count)
    sure_ms = [0]  # when the calls of `sure` that returned True began

    def doubts() -> bool:
        asked_ms = boot_ms()
        if not coordination.sure():
            return True
        sure_ms.append(asked_ms)
        return False

    with place.mute():
        muted_ms = boot_ms()
        before = calls.count
        until(doubts)
        assert sure_ms[-1] - muted_ms <= TIMEOUT_MS
        until(lambda: calls.count > before)
        end_ms = boot_ms() + TIMEOUT_MS
        until(lambda: boot_ms() > end_ms)
        assert not coordination.sure()
        before = calls.count
    until(lambda: calls.count > before)
    until(lambda: succeeds(lambda: coordination.join("here", "2")) and coordination.sure())
    assert coordination.members() == {"here": "2"}


def test_news_of_a_silent_time_are_told_afterwards(place: Place, coordination: Coordination):
    """After the sessions reconnect, watchers are called for later changes."""
    other = place.other()
    calls = Calls(coordination)
    with place.mute():
        until(lambda: not coordination.sure())
    until(lambda: succeeds(lambda: other.call("bump")))
    until(coordination.sure)
    with calls.expected():
        other.call("bump")
