"""Calls whoever watches when something looks different, from one thread of its own.

`look` gives a value that differs after every change; it is asked after every `wake` and every `interval` seconds;
changes come in company, so for a second after each it is asked every `quick_interval` seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_FAILED = object()
_QUICK_SECONDS = 1.0


class Watchers:
    def __init__(self, look: Callable[[], object], interval: float, quick_interval: float) -> None:
        self._look = look
        self._interval = interval
        self._quick_interval = quick_interval
        self._condition = threading.Condition()
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._woken = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        key = object()
        with self._condition:
            self._callbacks[key] = callback
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="strandline-coordination-watcher", daemon=True
                )
                self._thread.start()
            self._condition.notify()
        return lambda: self._unwatch(key)

    def _unwatch(self, key: object) -> None:
        with self._condition:
            self._callbacks.pop(key, None)

    def wake(self) -> None:
        """Look now."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def _run(self) -> None:
        seen: object = None
        changed_at = 0.0
        while self._wait_for_somebody():
            now = self._look_safely(seen)
            # The first look has nothing to compare with: a change may have come just before it.
            if now != seen:
                seen, changed_at = now, time.monotonic()
                self._call()
            quick = time.monotonic() - changed_at < _QUICK_SECONDS
            with self._condition:
                if not self._woken and not self._closed:
                    self._condition.wait(self._quick_interval if quick else self._interval)

    def _wait_for_somebody(self) -> bool:
        with self._condition:
            while not self._callbacks and not self._closed:
                self._condition.wait()
            self._woken = False
            return not self._closed

    def _look_safely(self, before: object) -> object:
        try:
            return self._look()
        except Exception:
            if before is not _FAILED:  # said once, not every few milliseconds
                log.exception("looking at the coordination data failed; it is tried again")
            return _FAILED

    def _call(self) -> None:
        with self._condition:
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a watcher's callback failed")

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        # A callback may be the one that closes.
        if self._thread not in {None, threading.current_thread()}:
            self._thread.join()
