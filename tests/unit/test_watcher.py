"""The watcher reports every change, including a change just before its first poll."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from services import until
from strandline.engine.watcher import Watcher
from strandline.errors import NotFound, Unavailable


class Versions:
    """Versions that a test changes. If `down` is set, every lookup raises it."""

    def __init__(self) -> None:
        self.of: dict[str, object] = {}
        self.down: Exception | None = None
        self.polls = 0

    def __call__(self, keys: Sequence[str]) -> dict[str, object]:
        self.polls += 1
        if self.down is not None:
            raise self.down
        return {key: self.of.get(key) for key in keys}


class Calls:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    def reach(self, count: int) -> None:
        until(lambda: self.count >= count)


@pytest.fixture
def versions() -> Versions:
    return Versions()


@pytest.fixture
def make(versions: Versions) -> Iterator[Callable[..., Watcher]]:
    made: list[Watcher] = []

    def one(interval: float = 3600, quick_interval: float | None = None) -> Watcher:
        made.append(Watcher(versions, interval, quick_interval))
        return made[-1]

    yield one
    for watcher in made:
        watcher.close()


def polled(versions: Versions, times: int = 3) -> None:
    """Wait until the watcher has polled a few more times."""
    goal = versions.polls + times
    until(lambda: versions.polls >= goal)


def test_the_first_poll_always_calls_even_for_a_missing_key(make, versions):
    """The key may have been removed just before it was watched."""
    versions.of["removed"] = NotFound("gone")
    calls = Calls()
    make().watch("removed", calls)
    calls.reach(1)


def test_every_new_callback_is_called_and_the_others_are_left_alone(make, versions):
    """A new callback may have missed a change. Other callbacks of the key are not called."""
    watcher, first, second = make(), Calls(), Calls()
    watcher.watch("a", first)
    first.reach(1)
    watcher.watch("a", second)
    second.reach(1)
    assert first.count == 1


def test_a_change_is_reported_for_its_key_only(make, versions):
    """Callbacks of other keys are not called."""
    watcher, changed, other = make(0.001), Calls(), Calls()
    watcher.watch("changed", changed)
    watcher.watch("other", other)
    changed.reach(1)
    other.reach(1)
    polled(versions)  # a callback that was registered during a poll may be called twice
    before = (changed.count, other.count)
    versions.of["changed"] = 2
    changed.reach(before[0] + 1)
    polled(versions)
    assert (changed.count, other.count) == (before[0] + 1, before[1])


def test_a_key_that_vanishes_is_a_change(make, versions):
    """The callback is called once, not at every poll."""
    watcher, calls = make(0.001), Calls()
    watcher.watch("a", calls)
    calls.reach(1)
    versions.of["a"] = NotFound("gone")
    calls.reach(2)
    polled(versions)
    assert calls.count == 2


def test_notify_calls_at_once_in_the_calling_thread(make):
    """Readers of the same process do not wait for the next poll."""
    watcher, threads = make(), []
    first = threading.Event()
    watcher.watch("a", lambda: (threads.append(threading.current_thread()), first.set()))
    assert first.wait(10)
    watcher.notify("a")
    watcher.notify("unwatched")
    assert threads[1:] == [threading.current_thread()]


def test_wake_polls_at_once_in_the_watchers_thread(make, versions):
    """Callers may hold locks that a callback needs."""
    watcher, threads = make(), []
    watcher.watch("a", lambda: threads.append(threading.current_thread().name))
    until(lambda: threads)
    versions.of["a"] = 2
    watcher.wake()
    until(lambda: len(threads) == 2)
    assert threads == ["strandline-watcher"] * 2


def test_a_stopped_callback_is_not_called(make):
    """Stopping is idempotent. The other callbacks are still called."""
    watcher, stopped, other = make(), Calls(), Calls()
    stop = watcher.watch("a", stopped)
    watcher.watch("a", other)
    stopped.reach(1)
    other.reach(1)
    stop()
    stop()
    watcher.notify("a")
    assert (stopped.count, other.count) == (1, 2)


def test_a_failing_callback_does_not_stop_the_others(make, caplog):
    """The failure is logged."""
    watcher, calls = make(), Calls()
    watcher.watch("a", lambda: 1 / 0)
    watcher.watch("a", calls)
    calls.reach(1)
    until(lambda: "a watcher's callback failed" in caplog.text)


def test_a_failing_poll_is_logged_once_and_its_end_is_reported(make, versions, caplog):
    """After a failure the callbacks are called, because changes may have been missed."""
    watcher, calls = make(0.001), Calls()
    watcher.watch("a", calls)
    calls.reach(1)
    versions.down = Unavailable("no connection")
    polled(versions)
    assert calls.count == 1
    assert caplog.text.count("could not check a for changes; retrying") == 1
    versions.down = None
    calls.reach(2)


def test_one_failing_key_does_not_hide_the_others(make, versions):
    """The version of a key may be an exception."""
    watcher, calls = make(0.001), Calls()
    versions.of["bad"] = Unavailable("not this one")
    watcher.watch("bad", Calls())
    watcher.watch("good", calls)
    calls.reach(1)
    versions.of["good"] = 2
    calls.reach(2)


def test_after_a_change_it_polls_at_the_quick_interval(make, versions):
    """Changes come in bursts."""
    watcher, calls = make(3600, 0.001), Calls()
    watcher.watch("a", calls)
    calls.reach(1)
    versions.of["a"] = 2
    calls.reach(2)


def test_without_callbacks_it_does_not_poll(make, versions):
    """There is no poll before the first callback and after the last one."""
    watcher, calls = make(0.001), Calls()
    watcher.wake()
    assert versions.polls == 0
    stop = watcher.watch("a", calls)
    calls.reach(1)
    stop()
    before = versions.polls
    assert not threading.Event().wait(0.05)
    assert versions.polls <= before + 1


def test_a_callback_may_close_its_watcher(make):
    """`close` does not wait for the calling callback. A closed watcher refuses new callbacks."""
    watcher, closed = make(), threading.Event()
    watcher.watch("a", lambda: (watcher.close(), closed.set()))
    assert closed.wait(10)
    with pytest.raises(Unavailable, match="closed"):
        watcher.watch("a", Calls())
