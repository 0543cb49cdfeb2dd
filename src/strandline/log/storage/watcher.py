"""Tells waiting readers that a topic has grown, with one thread for all of them.

Appends of this process are told at once; those of other processes are found by looking at the versions of
all watched topics every few milliseconds. Without watchers the thread sleeps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from strandline.errors import NotFound, Unavailable

log = logging.getLogger(__name__)

_FAILED = object()
_MISSING = object()
_UNSEEN = object()


class Watcher:
    """`versions` gives, for each topic, something that is different after every commit, or the error it met."""

    def __init__(self, versions: Callable[[Sequence[str]], Mapping[str, object]], interval: float) -> None:
        self._versions = versions
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
            found = self._look(topics)
            seen = {topic: self._compared(topic, seen.get(topic, _UNSEEN), found[topic]) for topic in topics}
            with self._condition:
                if not self._closed:
                    self._condition.wait(self._interval)

    def _look(self, topics: Sequence[str]) -> Mapping[str, object]:
        try:
            return self._versions(topics)
        except Exception as error:  # noqa: BLE001 - it is told below
            return dict.fromkeys(topics, error)

    def _compared(self, topic: str, before: object, now: object) -> object:
        if isinstance(now, NotFound):
            now = _MISSING
        elif isinstance(now, Exception):
            if before is not _FAILED:  # said once, not every few milliseconds
                log.error("looking at topic %s failed; it is tried again", topic, exc_info=now)
            return _FAILED
        # The first look always tells: a commit, or the end of all, may have come just before it.
        if now != before:
            self.notify(topic)
        return now

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
