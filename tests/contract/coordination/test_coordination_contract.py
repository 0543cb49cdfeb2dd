"""The contract of every coordination while all processes run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from coordination_place import LONG_MS, TIMEOUT_MS, Calls, Place, is_unlocked

from services import until
from strandline.clock import boot_ms
from strandline.coordination.port import Coordination
from strandline.errors import Conflict, LeaseLost

ODD_NAMES = [
    "shop.order",
    "a/b//c/",
    ".",
    "..",
    "%2E",
    "größe ☂ 时间",
    "with space",
    "zookeeper",
    "it's; DROP TABLE locks --",
    "a\tb",
    "?x=1#y",
    "e\u0301 is not é",
    "x" * 255,
]


def test_members_see_each_other(place: Place, coordination: Coordination):
    """Every process reads the value of every member by its id."""
    other = place.other()
    coordination.join("here", "1")
    other.call("join", "there", "2")
    assert coordination.members() == {"here": "1", "there": "2"}
    assert other.call("members") == {"here": "1", "there": "2"}


def test_a_session_that_does_not_join_is_no_member(place: Place, coordination: Coordination):
    """A switch does not wait for sessions that only read or initiate."""
    place.other()
    assert coordination.members() == {}


def test_a_member_changes_its_value(place: Place, coordination: Coordination):
    """`update` changes only the member's own value."""
    other = place.other()
    coordination.join("here", "1")
    other.call("join", "there", "1")
    coordination.update("2")
    assert other.call("members") == {"here": "2", "there": "1"}


def test_who_is_no_member_has_no_value_to_change(coordination: Coordination):
    """`update` without `join` is LeaseLost and adds no member."""
    with pytest.raises(LeaseLost):
        coordination.update("1")
    assert coordination.members() == {}


def test_joining_again_under_the_same_id_changes_nothing_but_the_value(coordination: Coordination):
    """`join` is idempotent: a process that does not know whether it joined can join again."""
    coordination.join("here", "1")
    coordination.join("here", "2")
    assert coordination.members() == {"here": "2"}
    assert coordination.sure()


def test_a_process_is_one_member(coordination: Coordination):
    """A second id is a Conflict, because no process would keep that member up to date."""
    coordination.join("here", "1")
    with pytest.raises(Conflict):
        coordination.join("there", "1")
    assert coordination.members() == {"here": "1"}


def test_an_id_is_taken_over_from_an_earlier_session(place: Place, coordination: Coordination):
    """The earlier session may exist for a while; its expiry does not remove the new member."""
    former = place.other()
    former.call("join", "me", "old")
    former.call("lock", "sign of life", "1")
    former.stop()
    coordination.join("me", "new")
    assert coordination.members() == {"me": "new"}
    former.kill()
    until(lambda: is_unlocked(coordination))
    assert coordination.members() == {"me": "new"}
    coordination.update("newer")
    assert coordination.members() == {"me": "newer"}


def test_versions_start_at_zero_and_grow_by_one(place: Place, coordination: Coordination):
    """All sessions share one version."""
    other = place.other()
    assert coordination.version() == 0
    assert coordination.bump() == 1
    assert other.call("version") == 1
    assert other.call("bump") == 2
    assert coordination.version() == 2


def test_concurrent_bumps_get_different_versions(place: Place, coordination: Coordination):
    """Eight threads in each of two processes get every number exactly once."""
    others = [place.other(), place.other()]
    for other in others:
        other.send("bump_often", 8, 10)
    found = [version for other in others for version in other.receive()]
    assert sorted(found) == list(range(1, 161))
    assert coordination.version() == 160


def test_a_lock_has_one_owner(place: Place, coordination: Coordination):
    """A second request, also by the same session, returns False and changes nothing."""
    other = place.other()
    assert coordination.lock("orders", "mine")
    assert not coordination.lock("orders", "again")
    assert not other.call("lock", "orders", "theirs")
    assert other.call("locks") == {"orders": "mine"}
    assert coordination.locks() == {"orders": "mine"}


def test_locks_of_different_names_do_not_meet(place: Place, coordination: Coordination):
    """Two event types can be locked at once."""
    assert coordination.lock("orders", "1")
    assert place.other().call("lock", "payments", "2")
    assert coordination.locks() == {"orders": "1", "payments": "2"}


def test_of_many_threads_one_gets_the_lock(coordination: Coordination):
    """Of concurrent requests in one session, exactly one gets the lock."""
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(10):
            won = list(pool.map(lambda n, r=round_: coordination.lock(f"r{r}", str(n)), range(8)))
            assert won.count(True) == 1
            assert coordination.locks()[f"r{round_}"] == str(won.index(True))


def test_of_two_processes_one_gets_the_lock(place: Place):
    """Of concurrent requests by two processes, exactly one gets the lock."""
    both = [place.other(), place.other()]
    for round_ in range(20):
        for other in both:
            other.send("lock", f"r{round_}", "x")
        assert sorted(other.receive() for other in both) == [False, True]


def test_a_lock_changes_its_value(place: Place, coordination: Coordination):
    """All sessions read the new value."""
    coordination.lock("orders", "preparing")
    coordination.relock("orders", "closing")
    assert place.other().call("locks") == {"orders": "closing"}


def test_only_the_owner_changes_a_lock(place: Place, coordination: Coordination):
    """`relock` is LeaseLost for a lock that is missing, foreign or released."""
    other = place.other()
    with pytest.raises(LeaseLost):
        coordination.relock("orders", "x")
    other.call("lock", "orders", "theirs")
    with pytest.raises(LeaseLost):
        coordination.relock("orders", "x")
    other.call("unlock", "orders")
    coordination.lock("orders", "mine")
    coordination.unlock("orders")
    with pytest.raises(LeaseLost):
        coordination.relock("orders", "x")
    assert coordination.locks() == {}


def test_a_lock_that_was_let_go_can_be_taken(place: Place, coordination: Coordination):
    """A released lock can be taken by any session."""
    other = place.other()
    for _ in range(3):
        assert coordination.lock("orders", "mine")
        coordination.unlock("orders")
        assert other.call("lock", "orders", "theirs")
        other.call("unlock", "orders")
    assert coordination.locks() == {}


def test_unlocking_what_is_not_ours_touches_nothing(place: Place, coordination: Coordination):
    """`unlock` has no effect on a foreign or missing lock."""
    place.other().call("lock", "orders", "theirs")
    coordination.unlock("orders")
    coordination.unlock("payments")
    assert coordination.locks() == {"orders": "theirs"}


def test_any_name_works(coordination: Coordination):
    """Locks may have any name."""
    for name in ODD_NAMES:
        assert coordination.lock(name, "1")
        assert not coordination.lock(name, "2")
        coordination.relock(name, f"lock of {name}")
        assert coordination.locks() == {name: f"lock of {name}"}
        coordination.unlock(name)
        assert coordination.locks() == {}


@pytest.mark.parametrize("node", ["a/b", "..", "größe ☂"])
def test_any_id_works(coordination: Coordination, node: str):
    """Members may have any id and any value."""
    coordination.join(node, f"value of {node}")
    coordination.update("é\n")
    assert coordination.members() == {node: "é\n"}


def test_names_that_look_alike_are_different(coordination: Coordination):
    """Different names are different locks, even if they look alike."""
    for number, name in enumerate(ODD_NAMES):
        assert coordination.lock(name, str(number))
    assert coordination.locks() == {name: str(number) for number, name in enumerate(ODD_NAMES)}


def test_a_living_session_outlives_its_timeout(place: Place):
    """Heartbeats keep the session, its member and its lock, and it stays sure."""
    timeout_ms = 2 * TIMEOUT_MS  # a heartbeat may be late by two seconds
    coordination, other = place.open(timeout_ms), place.other()
    coordination.join("here", "1")
    coordination.lock("orders", "mine")
    end_ms = boot_ms() + 3 * timeout_ms // 2
    until(lambda: boot_ms() > end_ms)
    assert coordination.sure()
    assert other.call("members") == {"here": "1"}
    assert other.call("locks") == {"orders": "mine"}
    coordination.relock("orders", "still mine")


@pytest.mark.parametrize(
    "change",
    [("bump",), ("lock", "new", "1"), ("relock", "old", "2"), ("unlock", "old"), ("update", "2"), ("close",)],
    ids=lambda change: change[0],
)
def test_watchers_hear_of_what_others_change(place: Place, coordination: Coordination, change: tuple[str, ...]):
    """The watcher is called soon after a change, and then reads the change."""
    other = place.other()
    other.call("join", "there", "1")
    other.call("lock", "old", "1")
    calls = Calls(coordination)

    def look() -> object:
        return coordination.version(), coordination.locks(), coordination.members()

    until(lambda: calls.count)  # the first call comes without a change
    before = look()
    with calls.expected():
        other.call(*change)
    assert look() != before


def test_watchers_hear_of_new_members(place: Place, coordination: Coordination):
    """A new member is watched from its start, so its first update is reported too."""
    other = place.other()
    calls = Calls(coordination)
    with calls.expected():
        other.call("join", "there", "1")
    until(lambda: coordination.members() == {"there": "1"})
    with calls.expected():
        other.call("update", "2")


def test_watchers_hear_of_every_one_of_many_changes(place: Place, coordination: Coordination):
    """The last call comes after the last change."""
    other = place.other()
    seen: list[int] = []
    coordination.watch(lambda: seen.append(coordination.version()))
    other.call("bump_often", 4, 25)
    until(lambda: seen and seen[-1] == 100)


def test_watchers_hear_of_what_this_session_changes(coordination: Coordination):
    """The session's own changes call its watchers too."""
    calls = Calls(coordination)
    for change in (
        coordination.bump,
        lambda: coordination.join("here", "1"),
        lambda: coordination.update("2"),
        lambda: coordination.lock("orders", "1"),
        lambda: coordination.unlock("orders"),
    ):
        with calls.expected():
            change()


def test_a_watcher_that_stopped_is_not_called(coordination: Coordination):
    """Other watchers are still called."""
    stopped, goes_on = Calls(coordination), Calls(coordination)
    with goes_on.expected():
        coordination.bump()
    stopped.stop()
    stopped.stop()
    before = stopped.count
    for _ in range(3):
        with goes_on.expected():
            coordination.bump()
    assert stopped.count == before


def test_a_watcher_that_fails_harms_nobody(coordination: Coordination, caplog: pytest.LogCaptureFixture):
    """The other watchers are called, and the failed one is called again at the next change."""
    failing = []

    def fail() -> None:
        failing.append(1)
        raise ValueError("on purpose")

    coordination.watch(fail)
    calls = Calls(coordination)
    with calls.expected():
        coordination.bump()
    before = len(failing)
    with calls.expected():
        coordination.bump()
    until(lambda: len(failing) > before)
    assert "on purpose" in caplog.text


def test_closing_leaves_at_once(place: Place):
    """Close removes member and locks long before the session would expire; it is idempotent."""
    watching = place.open(timeout_ms=LONG_MS)
    leaving = place.open(timeout_ms=LONG_MS)
    leaving.join("there", "1")
    leaving.lock("orders", "1")
    leaving.close()
    until(lambda: (watching.members(), watching.locks()) == ({}, {}))
    assert not leaving.sure()
    leaving.close()


def test_a_session_is_sure_from_the_beginning(coordination: Coordination):
    """A session is sure before and after it joins or locks."""
    assert coordination.sure()
    coordination.join("here", "1")
    coordination.lock("orders", "1")
    assert coordination.sure()
