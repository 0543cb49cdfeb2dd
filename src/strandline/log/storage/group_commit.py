"""Appends of any number of threads, stored in groups: one commit answers all that came while the last one ran."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress

from strandline.errors import OutcomeUnknown, StrandlineError, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage.port import Placed

# One transaction takes no more than this, so that the first of a long queue is not kept waiting.
_GROUP_RECORDS = 20_000
_GROUP_BYTES = 64 << 20

Batches = Mapping[int, NewRecords]


class Append(Future[dict[int, Placed]]):
    """One append, queued. Whoever waits for it stores it, if nobody is storing yet."""

    def __init__(self, batches: Batches, commits: GroupCommit) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # what is queued will be stored: it cannot be cancelled
        self.batches = batches
        self._commits = commits

    def result(self, timeout: float | None = None) -> dict[int, Placed]:
        if not self.done():
            self._commits.help(self)
        return super().result(timeout)


class GroupCommit:
    """Calls `store` for one group after the other, never twice at a time, in the order of the appends.

    A thread of the executor does it, so that nobody has to wait for an append to happen. A caller that waits
    stores by itself if nobody else is at it: that saves waking one thread and being woken by it. It does so only
    if `free` says that nothing is likely to hold it up, for it may have to be back in time.
    """

    def __init__(
        self,
        store: Callable[[Sequence[Batches]], Sequence[dict[int, Placed]]],
        free: Callable[[], bool],
        executor: Executor,
    ) -> None:
        self._store = store
        self._free = free
        self._executor = executor
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[Append] = deque()
        self._storing = False
        self._called = False  # a thread of the executor is on its way

    def append(self, batches: Batches, *, waits: bool) -> Append:
        """Queue an append; if its caller waits for the result at once, nobody is called to store it."""
        append = Append(batches, self)
        with self._changed:
            self._queue.append(append)
        if not waits:
            self._call()
        return append

    def help(self, append: Append) -> None:
        """See to it that an append is being stored, best by this thread."""
        if not self._storing and self._free():
            self._work(append)
        if not append.done():
            self._call()

    def _call(self) -> None:
        """Have what is queued stored by the executor, unless somebody is at it, who will not leave before."""
        with self._changed:
            if self._storing or self._called or not self._queue:
                return
            self._called = True
        with suppress(RuntimeError):  # it is shut down: `finish` does the rest
            self._executor.submit(self._answer_call)

    def finish(self) -> None:
        """Return when everything queued is answered."""
        while True:
            with self._changed:
                while self._storing:
                    self._changed.wait()
                if not self._queue:
                    return
            self._work()

    def _answer_call(self) -> None:
        with self._changed:
            self._called = False
        self._work()

    def _work(self, until: Append | None = None) -> None:
        with self._changed:
            if self._storing:
                return
            self._storing = True
        try:
            while self._queue and not (until is not None and until.done()):
                self._store_group()
        finally:
            with self._changed:
                self._storing = False
                self._changed.notify_all()
            self._call()

    def _store_group(self) -> None:
        group: list[Append] = []
        try:
            self._take(group)
            results = self._store([append.batches for append in group])
        except Exception as error:  # noqa: BLE001 - whoever waits must be told
            _fail(group, error if isinstance(error, StrandlineError) else _unexpected(error))
        except BaseException:
            # The caller that stores was interrupted, perhaps between the commit and here.
            _fail(group, OutcomeUnknown("storing was interrupted"))
            raise
        else:
            for append, placed in zip(group, results, strict=True):
                append.set_result(placed)

    def _take(self, group: list[Append]) -> None:
        count = size = 0
        with self._changed:
            while self._queue and count < _GROUP_RECORDS and size < _GROUP_BYTES:
                group.append(self._queue.popleft())
                for batch in group[-1].batches.values():
                    count += len(batch)
                    size += batch.size


def _fail(group: Sequence[Append], error: StrandlineError) -> None:
    for append in group:
        append.set_exception(error)


def _unexpected(cause: Exception) -> Unavailable:
    error = Unavailable(f"storing failed: {cause}")
    error.__cause__ = cause
    return error
