"""Tells waiting readers that a topic has grown, with one thread for all of them.

Appends of this process are told at once; those of other processes are found by looking at each watched
topic's version every few milliseconds. Without watchers the thread sleeps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Watcher:
    def __init__(self, version: Callable[[str], int], interval: float) -> None:
        self._version = version
        self._interval = interval
        self._condition = threading.Condition()
        self._callbacks: dict[str, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        with self._condition:
            self._callbacks.setdefault(topic, []).append(callback)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="strandline-watcher", daemon=True)
                self._thread.start()
            self._condition.notify()
        return lambda: self._unwatch(topic, callback)

    def _unwatch(self, topic: str, callback: Callable[[], None]) -> None:
        with self._condition:
            callbacks = self._callbacks.get(topic, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if not callbacks:
                self._callbacks.pop(topic, None)

    def notify(self, topic: str) -> None:
        if topic not in self._callbacks:
            return
        with self._condition:
            callbacks = list(self._callbacks.get(topic, ()))
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a watcher's callback failed")

    def _run(self) -> None:
        seen: dict[str, int] = {}
        while True:
            with self._condition:
                while not self._callbacks and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                topics = list(self._callbacks)
            seen = {topic: self._look(topic, seen.get(topic)) for topic in topics}
            with self._condition:
                if not self._closed:
                    self._condition.wait(self._interval)

    def _look(self, topic: str, before: int | None) -> int:
        try:
            now = self._version(topic)
        except Exception:
            log.exception("looking at topic %s failed", topic)
            return -1 if before is None else before
        # The first look has nothing to compare with: a commit may have come just before it.
        if now != before:
            self.notify(topic)
        return now

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
