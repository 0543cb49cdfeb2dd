"""A failpoint fires once, at the hit that it is set for."""

import os
import signal

import pytest

from strandline import failpoints


@pytest.mark.parametrize(("text", "hits"), [("", 0), ("other:kill", 0), ("step:kill", 1), ("step:stop:3", 3)])
def test_a_failpoint_strikes_once_at_its_time(monkeypatch, text, hits):
    """A failpoint fires at the first hit or at the given one. Hits of other names do nothing."""
    seen: list[tuple[int, signal.Signals]] = []
    struck: list[int] = []
    monkeypatch.setattr(failpoints.os, "kill", lambda pid, number: seen.append((pid, number)))
    failpoints.arm(text)
    for time in range(1, 6):
        failpoints.hit("step")
        struck += [time] * (len(seen) - len(struck))
    failpoints.arm("")
    assert struck == ([hits] if hits else [])
    assert seen == [(os.getpid(), signal.SIGSTOP if "stop" in text else signal.SIGKILL)] * len(struck)
