"""Jobs that fail are started again, with growing pauses."""

from __future__ import annotations

import threading

import pytest

from strandline.errors import Unavailable
from strandline.pipeline import restarts
from strandline.pipeline.restarts import Pauses, run_again
from strandline.progress import JobState


def test_pauses_grow_up_to_a_minute_and_begin_anew_after_a_long_run():
    """A job that fails at once is not started all the time."""
    pauses = Pauses()
    assert [pauses.after(0.1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [pauses.after(61), pauses.after(0.1)] == [1, 2]


@pytest.fixture
def told(monkeypatch) -> list[JobState]:
    monkeypatch.setattr(restarts, "_FIRST_S", 0.001)
    return []


def test_a_job_that_fails_runs_again(told):
    """Every failure is told with its reason, and so is a job that has just ended."""
    stop, failures = threading.Event(), [Unavailable("no toys"), ValueError("broken"), None]

    def run() -> None:
        if not failures:
            stop.set()
        elif (error := failures.pop(0)) is not None:
            raise error

    run_again("toy", run, stop, told.append)
    assert [state.state for state in told] == ["running", "restarting"] * 3 + ["running"]
    reasons = [state.detail.split(";")[0] for state in told if state.is_wrong]
    assert reasons == ["no toys", "it failed with ValueError", "it ended"]


def test_an_error_after_the_stop_is_raised(told):
    """The process of the jobs then ends with an error."""
    stop = threading.Event()

    def run() -> None:
        stop.set()
        raise Unavailable("the JVM has ended")

    with pytest.raises(Unavailable):
        run_again("toy", run, stop, told.append)
