"""Runs jobs on a few threads, in lanes: the jobs of one lane run one after the other, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from strandline.errors import Unavailable

_T = TypeVar("_T")
_Job = tuple[Future[Any], Callable[[], Any]]


class Lanes:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="strandline-publish")
        self._changed = threading.Condition()
        self._queues: dict[Hashable, deque[_Job]] = {}
        self._closed = False

    def submit(self, lane: Hashable, job: Callable[[], _T]) -> Future[_T]:
        done: Future[_T] = Future()
        with self._changed:
            if self._closed:
                raise Unavailable("this client is closed; connect again")
            queue = self._queues.setdefault(lane, deque())
            queue.append((done, job))
            if len(queue) == 1:
                self._pool.submit(self._run_first, lane)
        return done

    def busy(self, lane: Hashable) -> bool:
        """Whether the lane has unfinished jobs."""
        with self._changed:
            return lane in self._queues

    def _run_first(self, lane: Hashable) -> None:
        queue = self._queues[lane]
        done, job = queue[0]
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001 - the future raises it
                done.set_exception(error)
        with self._changed:
            queue.popleft()
            if queue:
                # Submitted again, not looped: a busy lane must not keep a thread from the other lanes.
                self._pool.submit(self._run_first, lane)
            else:
                del self._queues[lane]
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse new jobs, and return when all accepted jobs are done."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._queues)
        self._pool.shutdown()
