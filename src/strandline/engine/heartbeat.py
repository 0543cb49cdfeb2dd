"""Renews leases in a separate thread, so that they do not expire during long work or a slow call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from strandline.errors import StrandlineError

log = logging.getLogger(__name__)

_BEATS_PER_LEASE = 3
_ATTEMPTS_PER_BEAT = 10


class Heartbeat:
    """Calls `beat` three times per lease, or every `longest` seconds if that is more often.

    A failed beat is retried ten times as often until one succeeds; only the first failure in a row is logged, as
    `what`. The first beat comes one interval after `start`: the caller has just taken the lease.
    """

    def __init__(
        self, what: str, beat: Callable[[], None], lease_ms: int, *, longest: float = float("inf")
    ) -> None:
        self._what = what
        self._beat = beat
        self._interval = min(lease_ms / 1000 / _BEATS_PER_LEASE, longest)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        failing = False
        while not self._stopped.wait(self._interval / _ATTEMPTS_PER_BEAT if failing else self._interval):
            failing = not self._succeeds(report=not failing)

    def _succeeds(self, *, report: bool) -> bool:
        try:
            self._beat()
        except Exception as error:
            if report:
                expected = isinstance(error, StrandlineError)
                log.warning("%s failed; retrying: %s", self._what, error, exc_info=not expected)
            return False
        return True

    def stop(self) -> None:
        """No beat runs after this. Idempotent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
