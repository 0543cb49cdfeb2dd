"""Calls back when something changes, with one thread for all callbacks.

Changes by this process are reported with `notify` or `wake`. Changes by other processes are found by polling: the
thread compares the versions of all watched keys at every interval. Without callbacks the thread sleeps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.errors import NotFound, Unavailable

log = logging.getLogger(__name__)

_FAILED = object()
_MISSING = object()
_UNSEEN = object()
_QUICK_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class _Watch:
    key: str
    callback: Callable[[], None]


class Watcher:
    """`versions` returns for each key a value that differs after every change, or the exception of its lookup.

    A new callback is always called once, because a change may have come just before it was registered. After that
    it is called when the version of its key has changed. A call may come without a change. Every change causes a
    call. Changes come in bursts: for a second after each, the thread polls at `quick_interval`.
    """

    def __init__(
        self,
        versions: Callable[[Sequence[str]], Mapping[str, object]],
        interval: float,
        quick_interval: float | None = None,
    ) -> None:
        self._versions = versions
        self._interval = interval
        self._quick_interval = interval if quick_interval is None else quick_interval
        self._condition = threading.Condition()
        self._watches: dict[str, set[_Watch]] = {}
        self._new: set[_Watch] = set()
        self._woken = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, key: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every change of the key. Returns a function that ends this."""
        watch = _Watch(key, callback)
        with self._condition:
            if self._closed:
                raise Unavailable("changes cannot be watched: the connection is closed")
            self._watches.setdefault(key, set()).add(watch)
            self._new.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="strandline-watcher", daemon=True)
                self._thread.start()
        self.wake()
        return lambda: self._unwatch(watch)

    def _unwatch(self, watch: _Watch) -> None:
        with self._condition:
            watches = self._watches.get(watch.key, set())
            watches.discard(watch)
            self._new.discard(watch)
            if not watches:
                self._watches.pop(watch.key, None)

    def notify(self, key: str) -> None:
        """The key has changed: run its callbacks now, in the calling thread."""
        if key not in self._watches:  # without the lock: publishers call this for every append
            return
        with self._condition:
            watches = [*self._watches.get(key, ())]
            self._new.difference_update(watches)
        _call(watches)

    def wake(self) -> None:
        """Something may have changed: poll now, in the watcher's own thread."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def _run(self) -> None:
        seen: dict[str, object] = {}
        changed_at = float("-inf")
        while keys := self._wait_for_keys():
            found = self._poll(keys)
            before, seen = seen, {key: self._compared(key, seen.get(key, _UNSEEN), found[key]) for key in keys}
            if seen != before:
                changed_at = time.monotonic()
            with self._condition:
                new, self._new = self._new, set()
            _call(new)
            quick = time.monotonic() - changed_at < _QUICK_SECONDS
            with self._condition:
                if not self._woken and not self._closed:
                    self._condition.wait(self._quick_interval if quick else self._interval)

    def _wait_for_keys(self) -> list[str]:
        """The watched keys; empty when the watcher is closed."""
        with self._condition:
            while not self._watches and not self._closed:
                self._condition.wait()
            self._woken = False
            return [] if self._closed else [*self._watches]

    def _poll(self, keys: Sequence[str]) -> Mapping[str, object]:
        try:
            return self._versions(keys)
        except Exception as error:  # noqa: BLE001 - `_compared` logs it
            return dict.fromkeys(keys, error)

    def _compared(self, key: str, before: object, now: object) -> object:
        if isinstance(now, NotFound):
            now = _MISSING
        elif isinstance(now, Exception):
            if before is not _FAILED:  # log the first failure only, not one every few milliseconds
                log.error("could not check %s for changes; retrying", key or "versions", exc_info=now)
            return _FAILED
        if now != before:
            self.notify(key)
        return now

    def close(self) -> None:
        """Stop calling back. A callback may close its own watcher."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _call(watches: Iterable[_Watch]) -> None:
    for watch in watches:
        try:
            watch.callback()
        except Exception:
            log.exception("a watcher's callback failed")
