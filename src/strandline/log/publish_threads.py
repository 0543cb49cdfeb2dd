"""Threads for publishes, in one pool per storage: a storage that does not answer holds only its own threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from strandline.log.event_types import EventTypes

_T = TypeVar("_T")
_THREADS = 8


class PublishThreads:
    def __init__(self, event_types: EventTypes) -> None:
        self._event_types = event_types
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._closed = False

    def of(self, name: str) -> Executor:
        """The threads for one event type; after a switch, those of its new storage."""
        return _EventTypeThreads(self, name)

    def submit(self, name: str, call: Callable[[], _T]) -> Future[_T]:
        """Run a call that publishes to an event type. RuntimeError after `close`."""
        entry = self._event_types.known(name)
        storage_id = entry.active.storage_id if entry is not None else ""
        with self._lock:
            if self._closed:
                raise RuntimeError("the publisher is closed")
            pool = self._pools.get(storage_id)
            if pool is None:
                pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="strandline-publisher")
                self._pools[storage_id] = pool
            return pool.submit(call)

    def close(self) -> None:
        """Wait for the calls that were started."""
        with self._lock:
            self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=True)


class _EventTypeThreads(Executor):
    def __init__(self, threads: PublishThreads, name: str) -> None:
        self._threads = threads
        self._name = name

    def submit(self, call: Callable[..., _T], /, *arguments: Any, **named: Any) -> Future[_T]:
        return self._threads.submit(self._name, partial(call, *arguments, **named))
