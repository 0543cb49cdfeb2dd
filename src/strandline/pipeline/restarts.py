"""When to start again what has ended: a job, or the process of all jobs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from strandline.errors import StrandlineError
from strandline.progress import JobState

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 1.0, 60.0


class Pauses:
    """The pauses before the next starts, in seconds: each is twice as long as the last one, up to a minute.

    After a run of more than a minute the first pause is used again.
    """

    def __init__(self) -> None:
        self._next = _FIRST_S

    def after(self, ran_s: float) -> float:
        """The pause after a run that has taken so long."""
        pause = _FIRST_S if ran_s > _LONGEST_S else self._next
        self._next = min(2 * pause, _LONGEST_S)
        return pause


def run_again(job: str, run: Callable[[], None], stop: threading.Event, tell: Callable[[JobState], None]) -> None:
    """Run a job until `stop` is set, again and again if it fails. An error after `stop` is raised."""
    pauses = Pauses()
    while not stop.is_set():
        tell(JobState(job, "running"))
        began = time.monotonic()
        reason = _failed(job, run, stop)
        if not stop.is_set():
            pause = pauses.after(time.monotonic() - began)
            tell(JobState(job, "restarting", f"{reason}; next start in {pause:g} s"))
            stop.wait(pause)


def _failed(job: str, run: Callable[[], None], stop: threading.Event) -> str:
    """Run a job; returns why it has ended."""
    try:
        run()
    except Exception as error:
        if stop.is_set():
            raise
        if isinstance(error, StrandlineError):
            log.warning("the job %s failed: %s", job, error.detail)
            return error.detail
        log.exception("the job %s failed", job)
        return f"it failed with {type(error).__name__}"
    return "it ended"
