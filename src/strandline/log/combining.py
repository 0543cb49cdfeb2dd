"""Work of many threads done in groups, by one of them at a time.

What comes while a group is worked on becomes the next group, and one commit serves all of it. Threads that wait
for a lock each wake up one after the other; a group needs none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Generic, TypeVar, cast

from strandline.errors import OutcomeUnknown, StrandlineError, Unavailable

_G = TypeVar("_G")
_R = TypeVar("_R")


class Job(Future[_R], Generic[_G, _R]):
    """One piece of work, queued. Whoever waits for it does it, if nobody is at work yet."""

    def __init__(self, given: _G, combiner: Combiner[_G, _R]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # what is queued will be done: it cannot be cancelled
        self.given = given
        self._combiner = combiner

    def result(self, timeout: float | None = None) -> _R:
        if not self.done():
            self._combiner.help(self)
        return super().result(timeout)


class QuickJob(Generic[_G, _R]):
    """The same for callers that do nothing but wait: a lock costs a third of a future."""

    __slots__ = ("_answer", "_combiner", "_pending", "given")

    def __init__(self, given: _G, combiner: Combiner[_G, _R]) -> None:
        self.given = given
        self._combiner = combiner
        self._answer: tuple[_R | None, BaseException | None] | None = None
        self._pending = threading.Lock()
        self._pending.acquire()  # whoever answers lets go of it

    def done(self) -> bool:
        return self._answer is not None

    def set_result(self, result: _R) -> None:
        self._answer = (result, None)
        self._pending.release()

    def set_exception(self, error: BaseException) -> None:
        self._answer = (None, error)
        self._pending.release()

    def result(self, timeout: float) -> _R:
        if self._answer is None:
            self._combiner.help(self)
        if self._answer is None and not self._pending.acquire(timeout=timeout):
            raise TimeoutError
        result, error = cast("tuple[_R, BaseException | None]", self._answer)
        if error is not None:
            raise error
        return result


class Combiner(Generic[_G, _R]):
    """Calls `act` for one group after the other, never twice at a time, in the order of the jobs.

    `act` answers every job with its result or an error of its own; what it raises is the answer to all. A group
    takes jobs up to a total `weight` of 1.

    A thread of the executor works, so that nobody has to wait for a job to be done. A caller that waits works by
    itself if nobody else does: that saves waking one thread and being woken by it. It does so only if `free`
    says that nothing is likely to hold it up, for it may have to be back in time.
    """

    def __init__(
        self,
        act: Callable[[Sequence[_G]], Sequence[_R | Exception]],
        executor: Executor,
        *,
        weight: Callable[[_G], float],
        free: Callable[[], bool] = lambda: True,
    ) -> None:
        self._act = act
        self._executor = executor
        self._weight = weight
        self._free = free
        self._changed = threading.Condition(threading.Lock())
        # Anybody adds to it; only the one at work takes away.
        self._queue: deque[Job[_G, _R] | QuickJob[_G, _R]] = deque()
        self._working = False
        self._called = False  # a thread of the executor is on its way

    def add(self, given: _G, *, waits: bool) -> Job[_G, _R]:
        """Queue a job; if its caller waits for the result at once, nobody is called to do it."""
        job = Job(given, self)
        self._queue.append(job)
        if not waits:
            self._call()
        return job

    def do(self, given: _G, timeout: float) -> _R:
        """Queue a job and wait until it is done, by whomever. TimeoutError if that takes too long."""
        job = QuickJob(given, self)
        self._queue.append(job)
        return job.result(timeout)

    def help(self, job: Job[_G, _R] | QuickJob[_G, _R]) -> None:
        """See to it that a job is done, best by this thread."""
        if self._working:
            return  # whoever is at it looks at the queue once more after letting go of it
        if self._free():
            self._work(job)
        if not job.done():
            self._call()

    def finish(self) -> None:
        """Return when everything queued is answered."""
        while True:
            with self._changed:
                while self._working:
                    self._changed.wait()
                if not self._queue:
                    return
            self._work()

    def _call(self) -> None:
        """Have what is queued done by the executor, unless somebody is at it, who will not leave before."""
        if self._working:
            return
        with self._changed:
            if self._working or self._called or not self._queue:
                return
            self._called = True
        with suppress(RuntimeError):  # it is shut down: `finish` does the rest
            self._executor.submit(self._answer_call)

    def _answer_call(self) -> None:
        with self._changed:
            self._called = False
        self._work()

    def _work(self, until: Job[_G, _R] | QuickJob[_G, _R] | None = None) -> None:
        with self._changed:
            if self._working:
                return
            self._working = True
        try:
            while self._queue and not (until is not None and until.done()):
                self._do_group()
        finally:
            with self._changed:
                self._working = False
                self._changed.notify_all()
            self._call()

    def _do_group(self) -> None:
        group: list[Job[_G, _R] | QuickJob[_G, _R]] = []
        try:
            self._take(group)
            results = self._act([job.given for job in group])
        except Exception as error:  # noqa: BLE001 - whoever waits must be told
            _answer(group, [error if isinstance(error, StrandlineError) else _unexpected(error)] * len(group))
        except BaseException:
            # The caller that works was interrupted, perhaps between the commit and here.
            _answer(group, [OutcomeUnknown("storing was interrupted")] * len(group))
            raise
        else:
            _answer(group, results)

    def _take(self, group: list[Job[_G, _R] | QuickJob[_G, _R]]) -> None:
        weight = 0.0
        while self._queue and weight < 1:
            group.append(self._queue.popleft())
            if self._queue:  # nothing to weigh it against otherwise
                weight += self._weight(group[-1].given)


def _answer(group: Sequence[Job[_G, _R] | QuickJob[_G, _R]], results: Sequence[_R | Exception]) -> None:
    for job, result in zip(group, results, strict=True):
        if isinstance(result, Exception):
            job.set_exception(result)
        else:
            job.set_result(result)


def _unexpected(cause: Exception) -> Unavailable:
    error = Unavailable(f"storing failed: {cause}")
    error.__cause__ = cause
    return error
