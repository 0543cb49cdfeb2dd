"""Tells waiting readers that a topic has grown, with one thread for all of them.

Appends of this process are told at once; those of other processes are found by looking at each watched
topic's version every few milliseconds. Without watchers the thread sleeps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from strandline.errors import NotFound, Unavailable

log = logging.getLogger(__name__)

_FAILED = object()
_MISSING = object()


class Watcher:
    """`version` gives something that is different after every commit; NotFound is fine."""

    def __init__(self, version: Callable[[str], object], interval: float) -> None:
        self._version = version
        self._interval = interval
        self._condition = threading.Condition()
        self._callbacks: dict[str, dict[object, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        key = object()
        with self._condition:
            if self._closed:
                raise Unavailable("the storage is closed")
            self._callbacks.setdefault(topic, {})[key] = callback
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="strandline-watcher", daemon=True)
                self._thread.start()
            self._condition.notify()
        return lambda: self._unwatch(topic, key)

    def _unwatch(self, topic: str, key: object) -> None:
        with self._condition:
            callbacks = self._callbacks.get(topic, {})
            callbacks.pop(key, None)
            if not callbacks:
                self._callbacks.pop(topic, None)

    def notify(self, topic: str) -> None:
        if topic not in self._callbacks:
            return
        with self._condition:
            callbacks = list(self._callbacks.get(topic, {}).values())
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a watcher's callback failed")

    def _run(self) -> None:
        seen: dict[str, object] = {}
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

    def _look(self, topic: str, before: object) -> object:
        try:
            now = self._version(topic)
        except NotFound:
            now = _MISSING
        except Exception:
            if before is not _FAILED:  # said once, not every few milliseconds
                log.exception("looking at topic %s failed; it is tried again", topic)
            return _FAILED
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
