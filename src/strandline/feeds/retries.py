"""Operations that failed in a part of the store are kept and retried, then given up.

They are kept in memory and in a table. If a process ends or is killed, another one, or the same one after a
restart, takes over its operations from the table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from strandline.errors import StrandlineError
from strandline.feeds.dead_letters import DeadOperations, WaitingOperation
from strandline.feeds.model import Applied, Operation, narrowed

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_AT_ONCE = 100
# More than this would take too much memory: an operation may name 10,000 feeds.
_MOST_KEPT = 10_000
#: A process that retries an operation for longer than its limit and this was killed.
LATE_MS = 60_000


@dataclass(frozen=True)
class _Kept:
    number: int
    operation: Operation
    error: StrandlineError
    deadline: float
    due: float
    pause: float = _FIRST_PAUSE_S


class Retries:
    """Thread-safe. A thread retries the operations."""

    def __init__(
        self,
        apply: Callable[[Sequence[Operation]], list[Applied]],
        letters: Callable[[], DeadOperations],
        limit_ms: int,
    ) -> None:
        self._apply = apply
        self._letters = letters
        self._limit_ms = limit_ms
        self._changed = threading.Condition()
        self._kept: list[_Kept] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._takes_over = False

    @property
    def waiting(self) -> int:
        return len(self._kept)

    def keep(self, operation: Operation, error: StrandlineError) -> None:
        """Retry the operation later. It is durable when this returns; StrandlineError if it cannot be kept."""
        if self._closed or len(self._kept) >= _MOST_KEPT:
            self._letters().add(operation, f"too many operations wait for a retry: {error.detail}")
            return
        number = self._letters().wait(operation, error.detail, self._limit_ms + LATE_MS)
        now = time.monotonic()
        deadline = now + self._limit_ms / 1000
        with self._changed:
            self._kept.append(_Kept(number, operation, error, deadline, now + _FIRST_PAUSE_S))
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="strandline-feed-retries", daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        """End the retries. A process that takes over operations leaves its own to the next, others give up."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        for kept in () if self._takes_over else self._kept:
            self._give_up(kept, "the process ended")
        self._kept = []

    def _work(self) -> None:
        while due := self._next():
            self._retry(due)

    def _next(self) -> list[_Kept]:
        """Wait for operations that are due; an empty list ends the thread."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = [kept for kept in self._kept if kept.due <= now][:_AT_ONCE]
                if due:
                    return due
                earliest = min((kept.due for kept in self._kept), default=None)
                self._changed.wait(None if earliest is None else earliest - now)
        return []

    def _retry(self, due: list[_Kept]) -> None:
        outcomes = list(zip(due, self._apply([kept.operation for kept in due]), strict=True))
        applied = [kept.number for kept, outcome in outcomes if not outcome.failed]
        if applied:
            # An operation that stays in the table is applied again, which changes nothing.
            with suppress(StrandlineError):
                self._letters().settle(applied)
        again = [self._failed_again(kept, outcome) for kept, outcome in outcomes if outcome.failed]
        with self._changed:
            done = {id(kept) for kept in due}
            self._kept = [kept for kept in self._kept if id(kept) not in done] + [kept for kept in again if kept]

    def _failed_again(self, kept: _Kept, applied: Applied) -> _Kept | None:
        """What to retry next; None if the operation was given up."""
        rest = narrowed(kept.operation, tuple(applied.failed))
        error = next(iter(applied.failed.values()))
        pause = min(kept.pause * 2, _LONGEST_PAUSE_S)
        later = replace(kept, operation=rest, error=error, due=time.monotonic() + pause, pause=pause)
        if later.due < later.deadline or not self._give_up(later, "it was retried without success"):
            return later
        return None

    def _give_up(self, kept: _Kept, why: str) -> bool:
        """Write a dead letter. If that fails, the operation stays in the table of those that wait."""
        try:
            self._letters().give_up(kept.number, kept.operation, f"{why}: {kept.error.detail}")
        except StrandlineError as error:
            log.error("%s cannot become a dead letter: %s", kept.operation, error.detail)  # noqa: TRY400 - no traceback
            return False
        return True

    def take_over(self, refusal: Callable[[Operation], str | None]) -> None:
        """Apply or give up the operations of ended processes. `refusal` says why one must not be applied."""
        self._takes_over = True
        while left := self._letters().overdue(_AT_ONCE):
            for one in left:
                self._finish(one, refusal(one.operation))

    def _finish(self, left: WaitingOperation, refused: str | None) -> None:
        if refused is not None:
            self._letters().give_up(left.number, left.operation, refused)
            return
        (applied,) = self._apply([left.operation])
        if not applied.failed:
            self._letters().settle([left.number])
            return
        error = next(iter(applied.failed.values()))
        rest = narrowed(left.operation, tuple(applied.failed))
        self._letters().give_up(left.number, rest, f"the process that retried it ended: {error.detail}")
