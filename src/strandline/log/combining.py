"""Group commit: jobs of many threads are done in groups, by one thread at a time.

Jobs that are queued while a group is in progress form the next group, and one commit serves the whole group.
Waking threads is the largest cost, so large groups are better, and no thread is woken only to wait again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import suppress
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from strandline.errors import OutcomeUnknown, StrandlineError, Unavailable

log = logging.getLogger(__name__)

# The next group is not started while more jobs arrive; the queue is checked at this interval.
_GATHER_SECONDS = 0.00005
# After this many groups a thread of the executor yields to other combiners.
_TURN_GROUPS = 16

_given = attrgetter("given")

_G = TypeVar("_G")
_R = TypeVar("_R")

#: Does a group of jobs. Returns a result or an error for each, or None if it would have to wait and must not.
Act = Callable[[Sequence[_G]], Sequence[_R | Exception] | None]


class QueuedJob(Future[_R], Generic[_G, _R]):
    """A queued job. A thread that waits for the result does the work itself if no other thread is working.

    A future without the costs of the base class: most jobs are answered before any thread waits for them, so the
    condition to wait on is made when it is needed first.
    """

    def __init__(self, given: _G, combiner: Combiner[_G, _R]) -> None:
        self._state = RUNNING  # a queued job cannot be cancelled
        self._result = self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[_R]], object]] = []
        self.given = given
        self._combiner = combiner

    def __getattr__(self, name: str) -> Any:
        if name != "_condition":
            raise AttributeError(name)
        return self.__dict__.setdefault(name, threading.Condition())  # the same for all threads

    def done(self) -> bool:
        return self._state == FINISHED

    def help(self) -> None:
        """Do the work in this thread, unless another thread does it or it would have to wait."""
        if self._state != FINISHED:
            self._combiner.help(self)

    def result(self, timeout: float | None = None) -> _R:
        if self._state != FINISHED:
            self._combiner.help(self)
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]  # it is set
        return super().result(timeout)

    def add_done_callback(self, fn: Callable[[Future[_R]], object]) -> None:
        self._done_callbacks.append(fn)
        if self._state == FINISHED:
            self._run_callbacks()

    def set_result(self, result: _R) -> None:
        self._result = result
        self._state = FINISHED
        self._tell()

    def set_exception(self, exception: BaseException | None) -> None:
        self._exception = exception
        self._state = FINISHED
        self._tell()

    def _tell(self) -> None:
        if "_condition" in self.__dict__:  # a thread that makes it later sees the state
            with self._condition:
                for waiter in self._waiters:
                    waiter.add_exception(self) if self._exception else waiter.add_result(self)
                self._condition.notify_all()
        if self._done_callbacks:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        while self._done_callbacks:
            try:
                callback = self._done_callbacks.pop(0)
            except IndexError:  # another thread runs it
                return
            try:
                callback(self)
            except Exception:
                log.exception("a callback of an append failed")


class WaitedJob(Generic[_G, _R]):
    """A job for callers that only wait for the result: a lock costs a third of a future."""

    __slots__ = ("_answer", "_combiner", "_pending", "given", "left")

    def __init__(self, given: _G, combiner: Combiner[_G, _R]) -> None:
        self.given = given
        self._combiner = combiner
        self.left = False  # its caller no longer waits
        self._answer: tuple[_R | None, BaseException | None] | None = None
        self._pending = threading.Lock()
        self._pending.acquire()  # released with the answer

    def done(self) -> bool:
        return self._answer is not None

    def set_result(self, result: _R) -> None:
        self._answer = (result, None)
        self._combiner.wake_later(self)

    def set_exception(self, error: BaseException) -> None:
        self._answer = (None, error)
        self._combiner.wake_later(self)

    def wake(self) -> None:
        self._pending.release()

    def result(self, timeout: float) -> _R:
        try:
            if self._answer is None:
                self._combiner.help(self)
            if self._answer is None and not self._pending.acquire(timeout=timeout):
                raise TimeoutError
        finally:
            self.left = True
            self._combiner.wake_next()
        result, error = cast("tuple[_R, BaseException | None]", self._answer)
        if error is not None:
            raise error
        return result


class Combiner(Generic[_G, _R]):
    """Calls `act` for one group after the other, never concurrently, in the order of the jobs.

    `act` returns a result or an error for every job; an error that it raises is the answer to all of them. A group
    takes jobs up to a total `weight` of 1.

    A thread of the executor does the work, so that a job is done even if its caller does not wait. A caller that
    waits does the work itself if no other thread does, which saves two thread switches. The caller may have a
    deadline, so it calls `attempt`, which does the same as `act`, or returns None if it would have to wait.
    """

    def __init__(
        self,
        act: Act[_G, _R],
        executor: Executor,
        *,
        weight: Callable[[_G], float],
        attempt: Act[_G, _R] | None = None,
    ) -> None:
        self._act = act
        self._attempt = attempt or act
        self._executor = executor
        self._weight = weight
        # Used directly: `with` on a condition may be interrupted by Ctrl-C after it has acquired the lock.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Any thread appends; only the working thread removes.
        self._queue: deque[QueuedJob[_G, _R] | WaitedJob[_G, _R]] = deque()
        # Answered jobs whose callers are still asleep. Each caller wakes the next one: all at once would wait for
        # the interpreter lock.
        self._asleep: deque[WaitedJob[_G, _R]] = deque()
        self._working = False
        self._finishing = False  # a thread waits until the working one stops
        self._called = False  # the executor has been asked for a thread

    @property
    def busy(self) -> bool:
        """Whether a job has no answer yet."""
        return bool(self._queue) or self._working  # in this order: a thread takes jobs only while it is working

    def add(self, given: _G, *, waits: bool) -> QueuedJob[_G, _R]:
        """Queue a job. If the caller waits for the result at once, the executor is not asked for a thread."""
        job = QueuedJob(given, self)
        self._queue.append(job)
        if not waits:
            self._call()
        return job

    def try_do(self, given: _G) -> _R | None:
        """Do a job at once in this thread. None if nothing was done: others have jobs, or it would have to wait.

        Without the queue and its locks, which cost as much as the preparation of a small publish.
        """
        mine, results = False, None
        try:
            with self._lock:
                if not self._working and not self._queue:
                    self._working = mine = True
            if mine:
                results = self._attempt((given,))
        except StrandlineError:
            raise
        except Exception as error:
            raise _unexpected(error) from error
        finally:
            if mine:
                self._stop_working()
        if results is None:
            return None
        (result,) = results
        if isinstance(result, Exception):
            raise result
        return result

    def do(self, given: _G, timeout: float) -> _R:
        """Do a job at once if there is no other, else queue it and wait. TimeoutError if that takes too long."""
        result = self.try_do(given)
        if result is not None:
            return result
        job = WaitedJob(given, self)
        self._queue.append(job)
        return job.result(timeout)

    def wake_later(self, job: WaitedJob[_G, _R]) -> None:
        self._asleep.append(job)

    def wake_next(self) -> None:
        """Wake one caller whose job was answered. Called after every group and by every caller that leaves."""
        with suppress(IndexError):  # no caller is asleep
            while (job := self._asleep.popleft()).left:
                pass
            job.wake()

    def help(self, job: QueuedJob[_G, _R] | WaitedJob[_G, _R]) -> None:
        """Make sure that a job gets done, preferably by this thread."""
        if self._working or self._called:
            return  # the working thread checks the queue again after it has stopped
        self._work(job)
        if not job.done():
            self._call()

    def finish(self) -> None:
        """Return when everything queued is answered."""
        while True:
            with self._lock:
                self._finishing = True
                while self._working:
                    self._changed.wait()
                if not self._queue:
                    return
            self._work()

    def _call(self) -> None:
        """Ask the executor for a thread, unless a thread is working, which checks the queue before it stops."""
        if self._working:
            return
        with self._lock:
            if self._working or self._called or not self._queue:
                return
            with suppress(RuntimeError):  # shut down: `finish` or a waiting caller does the rest
                self._executor.submit(self._answer_call)
                self._called = True  # only after a successful submit, because it keeps other threads from starting

    def _answer_call(self) -> None:
        with self._lock:
            self._called = False
        self._work()

    def _work(self, until: QueuedJob[_G, _R] | WaitedJob[_G, _R] | None = None) -> None:
        mine = False
        try:
            with self._lock:
                if self._working:
                    return
                self._working = mine = True
            act = self._act if until is None else self._attempt
            for _ in range(_TURN_GROUPS):
                size = self._do_group(act) if self._queue else 0
                if not size or (until is not None and until.done()):
                    break
                if until is None and size > 1:
                    self._gather(2 * size)
        finally:
            if mine:
                self._stop_working()

    def _stop_working(self) -> None:
        self._working = False  # first: after an interrupt before this line no thread could work again
        if self._finishing:
            with self._lock:
                self._changed.notify_all()
        if self._queue:  # other threads have relied on this one
            self._call()

    def _gather(self, most: int) -> None:
        """Wait briefly for the callers that were answered to queue their next jobs."""
        before = -1
        while before < len(self._queue) < most:
            before = len(self._queue)
            time.sleep(_GATHER_SECONDS)

    def _do_group(self, act: Act[_G, _R]) -> int:
        """Do the next group; returns its size, or 0 if that would have to wait."""
        queue, weight = self._queue, 0.0
        group: list[QueuedJob[_G, _R] | WaitedJob[_G, _R]] = []
        try:
            while queue and weight < 1:
                group.append(queue[0])  # before popleft: an interrupt between the two loses no job
                queue.popleft()
                if queue:  # the weight of the last job does not matter
                    weight += self._weight(group[-1].given)
            results = act([*map(_given, group)])
            if results is None:
                queue.extendleft(reversed(group))
                return 0
            for job, result in zip(group, results, strict=True):
                if isinstance(result, Exception):
                    job.set_exception(result)
                else:
                    job.set_result(result)
            if self._asleep:
                self.wake_next()
        except Exception as error:  # noqa: BLE001 - the callers get it as their answer
            self._fail(group, error if isinstance(error, StrandlineError) else _unexpected(error))
        except BaseException:
            # The working caller was interrupted, perhaps after the commit or in the middle of the answers.
            self._fail(group, OutcomeUnknown("storing was interrupted"))
            raise
        return len(group)

    def _fail(self, group: Sequence[QueuedJob[_G, _R] | WaitedJob[_G, _R]], error: StrandlineError) -> None:
        """Answer the jobs that have no answer yet."""
        for job in group:
            if not job.done():
                job.set_exception(error)
        self.wake_next()


def _unexpected(cause: Exception) -> Unavailable:
    error = Unavailable(f"storing failed: {cause}")
    error.__cause__ = cause
    return error
