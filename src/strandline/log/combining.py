"""Work of many threads done in groups, by one of them at a time.

What comes while a group is worked on becomes the next group, and one commit serves all of it. What costs most is
waking threads, so that the larger the groups the better, and nobody is woken who would have to wait again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Generic, TypeVar, cast

from strandline.errors import OutcomeUnknown, StrandlineError, Unavailable

# While jobs come in, the next group is not begun; each look takes so long.
_GATHER_SECONDS = 0.00005
# Then a thread of the executor lets the work of other combiners come first.
_TURN_GROUPS = 16

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

    __slots__ = ("_answer", "_combiner", "_pending", "given", "left")

    def __init__(self, given: _G, combiner: Combiner[_G, _R]) -> None:
        self.given = given
        self._combiner = combiner
        self.left = False  # nobody waits for it any more
        self._answer: tuple[_R | None, BaseException | None] | None = None
        self._pending = threading.Lock()
        self._pending.acquire()  # whoever answers lets go of it

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
        # Entered by itself it is safe from Ctrl-C; a condition may be interrupted between taking it and the block.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Anybody adds to it; only the one at work takes away.
        self._queue: deque[Job[_G, _R] | QuickJob[_G, _R]] = deque()
        # Answered, and still asleep. Each wakes the next when it goes: all at once would only wait again, for the
        # interpreter.
        self._asleep: deque[QuickJob[_G, _R]] = deque()
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

    def wake_later(self, job: QuickJob[_G, _R]) -> None:
        self._asleep.append(job)

    def wake_next(self) -> None:
        """Wake one of those that were answered, to be called whenever some were and by everyone who goes."""
        with suppress(IndexError):  # there is none
            while (job := self._asleep.popleft()).left:
                pass
            job.wake()

    def help(self, job: Job[_G, _R] | QuickJob[_G, _R]) -> None:
        """See to it that a job is done, best by this thread."""
        if self._working or self._called:
            return  # whoever is at it, or comes, looks at the queue once more after letting go of it
        if self._free():
            self._work(job)
        if not job.done():
            self._call()

    def finish(self) -> None:
        """Return when everything queued is answered."""
        while True:
            with self._lock:
                while self._working:
                    self._changed.wait()
                if not self._queue:
                    return
            self._work()

    def _call(self) -> None:
        """Have what is queued done by the executor, unless somebody is at it, who will not leave before."""
        if self._working:
            return
        with self._lock:
            if self._working or self._called or not self._queue:
                return
            with suppress(RuntimeError):  # it is shut down: `finish` does the rest, or whoever comes
                self._executor.submit(self._answer_call)
                self._called = True  # never without one who comes: nobody else would begin

    def _answer_call(self) -> None:
        with self._lock:
            self._called = False
        self._work()

    def _work(self, until: Job[_G, _R] | QuickJob[_G, _R] | None = None) -> None:
        mine = False
        try:
            with self._lock:
                if self._working:
                    return
                self._working = mine = True
            for _ in range(_TURN_GROUPS):
                if not self._queue or (until is not None and until.done()):
                    break
                size = self._do_group()
                if until is None and size > 1:
                    self._gather(2 * size)
        finally:
            if mine:
                self._working = False  # first of all: an interrupt here would end all work for good
                with self._lock:
                    self._changed.notify_all()
                self._call()

    def _gather(self, most: int) -> None:
        """Let those who were answered come back, and be in the next group."""
        before = -1
        while before < len(self._queue) < most:
            before = len(self._queue)
            time.sleep(_GATHER_SECONDS)

    def _do_group(self) -> int:
        group: list[Job[_G, _R] | QuickJob[_G, _R]] = []
        try:
            self._take(group)
            self._answer(group, self._act([job.given for job in group]))
        except Exception as error:  # noqa: BLE001 - whoever waits must be told
            self._answer(group, [error if isinstance(error, StrandlineError) else _unexpected(error)] * len(group))
        except BaseException:
            # The caller that works was interrupted, perhaps after the commit, perhaps while it answered.
            self._answer(group, [OutcomeUnknown("storing was interrupted")] * len(group))
            raise
        return len(group)

    def _answer(self, group: Sequence[Job[_G, _R] | QuickJob[_G, _R]], results: Sequence[_R | Exception]) -> None:
        """Tell everybody who was not told yet."""
        for job, result in zip(group, results, strict=True):
            if job.done():
                continue
            if isinstance(result, Exception):
                job.set_exception(result)
            else:
                job.set_result(result)
        self.wake_next()

    def _take(self, group: list[Job[_G, _R] | QuickJob[_G, _R]]) -> None:
        weight = 0.0
        while self._queue and weight < 1:
            group.append(self._queue[0])  # first, so that an interrupt between the two loses nothing
            self._queue.popleft()
            if self._queue:  # nothing to weigh it against otherwise
                weight += self._weight(group[-1].given)


def _unexpected(cause: Exception) -> Unavailable:
    error = Unavailable(f"storing failed: {cause}")
    error.__cause__ = cause
    return error
