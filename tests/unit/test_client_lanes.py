"""Jobs of one lane run in order; lanes run in parallel."""

from __future__ import annotations

import threading

import pytest

from strandline.client.lanes import Lanes
from strandline.errors import Unavailable


def test_a_lane_keeps_its_order():
    """Jobs of a lane never overlap or overtake each other, with any number of threads."""
    lanes = Lanes(8)
    done: list[int] = []
    futures = [lanes.submit("a", lambda number=number: done.append(number)) for number in range(200)]
    for future in futures:
        future.result(10)
    assert done == list(range(200))
    lanes.close()


def test_lanes_do_not_wait_for_each_other():
    """A job that hangs blocks only its own lane."""
    lanes = Lanes(2)
    go = threading.Event()
    held = lanes.submit("a", lambda: go.wait(10))
    behind = lanes.submit("a", lambda: "behind")
    assert lanes.submit("b", lambda: "free").result(10) == "free"
    assert not behind.done()
    assert lanes.busy("a")
    go.set()
    assert held.result(10)
    assert behind.result(10) == "behind"
    lanes.close()
    assert not lanes.busy("a")


def test_more_lanes_than_threads_all_get_their_turn():
    """Two threads serve many lanes; no lane starves behind a long one."""
    lanes = Lanes(2)
    order: list[str] = []
    gate = threading.Event()
    lanes.submit("first", lambda: gate.wait(10))
    lanes.submit("second", lambda: gate.wait(10))
    futures = [lanes.submit("first", lambda: order.append("long")) for _ in range(50)]
    futures.append(lanes.submit("third", lambda: order.append("short")))
    gate.set()
    for future in futures:
        future.result(10)
    assert order.index("short") < 10
    lanes.close()


def test_an_error_is_the_futures_and_the_lane_goes_on():
    """A failed job does not stop the next job of its lane."""
    lanes = Lanes(1)

    def fail() -> None:
        raise ValueError("no")

    failed = lanes.submit("a", fail)
    after = lanes.submit("a", lambda: 1)
    with pytest.raises(ValueError, match="no"):
        failed.result(10)
    assert after.result(10) == 1
    lanes.close()


def test_a_cancelled_job_is_passed_over():
    """A job that is cancelled before it starts does not run."""
    lanes = Lanes(1)
    go = threading.Event()
    ran: list[str] = []
    lanes.submit("a", lambda: go.wait(10))
    cancelled = lanes.submit("a", lambda: ran.append("cancelled"))
    last = lanes.submit("a", lambda: ran.append("last"))
    assert cancelled.cancel()
    go.set()
    last.result(10)
    assert ran == ["last"]
    lanes.close()


def test_closing_finishes_what_was_started():
    """After `close` every accepted job is done, and new jobs are refused."""
    lanes = Lanes(2)
    done: list[int] = []
    for number in range(50):
        lanes.submit(number % 5, lambda number=number: done.append(number))
    lanes.close()
    assert sorted(done) == list(range(50))
    with pytest.raises(Unavailable):
        lanes.submit("a", lambda: None)
