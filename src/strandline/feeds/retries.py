"""Operations that failed in a part of the store are kept in memory and retried, then given up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strandline.errors import StrandlineError
from strandline.feeds.model import Applied, Operation, narrowed

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_AT_ONCE = 100
# More than this would take too much memory: an operation may name 10,000 feeds.
_MOST_KEPT = 10_000


@dataclass(frozen=True)
class _Kept:
    operation: Operation
    error: StrandlineError
    deadline: float
    due: float
    pause: float = _FIRST_PAUSE_S


class Retries:
    """Thread-safe. A thread works while operations are kept; `close` gives the remaining ones up."""

    def __init__(
        self,
        apply: Callable[[Sequence[Operation]], list[Applied]],
        give_up: Callable[[Operation, str], None],
        limit_ms: int,
    ) -> None:
        self._apply = apply
        self._give_up = give_up
        self._limit_s = limit_ms / 1000
        self._changed = threading.Condition()
        self._kept: list[_Kept] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._kept)

    def keep(self, operation: Operation, error: StrandlineError) -> None:
        now = time.monotonic()
        new = _Kept(operation, error, now + self._limit_s, now + _FIRST_PAUSE_S)
        with self._changed:
            accepted = not self._closed and len(self._kept) < _MOST_KEPT
            if accepted:
                self._kept.append(new)
                self._start()
        if not accepted:
            self._bury(new, "too many operations wait for a retry")

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="strandline-feed-retries", daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        for kept in self._kept:
            self._bury(kept, "the process ended")
        self._kept = []

    def _work(self) -> None:
        while due := self._next():
            self._retry(due)

    def _next(self) -> list[_Kept]:
        """Waits for operations that are due; an empty list ends the thread."""
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
        outcomes = self._apply([kept.operation for kept in due])
        again = [
            self._failed_again(kept, applied)
            for kept, applied in zip(due, outcomes, strict=True)
            if applied.failed
        ]
        with self._changed:
            done = {id(kept) for kept in due}
            self._kept = [kept for kept in self._kept if id(kept) not in done] + [kept for kept in again if kept]

    def _failed_again(self, kept: _Kept, applied: Applied) -> _Kept | None:
        """What to retry next; None if the operation was given up."""
        rest = narrowed(kept.operation, tuple(applied.failed))
        error = next(iter(applied.failed.values()))
        pause = min(kept.pause * 2, _LONGEST_PAUSE_S)
        later = replace(kept, operation=rest, error=error, due=time.monotonic() + pause, pause=pause)
        if later.due < later.deadline or not self._bury(later, "it was retried without success"):
            return later
        return None

    def _bury(self, kept: _Kept, why: str) -> bool:
        """Write a dead letter. If that fails, the log of the process is what is left."""
        try:
            self._give_up(kept.operation, f"{why}: {kept.error.detail}")
        except StrandlineError as error:
            log.error("%s cannot become a dead letter: %s", kept.operation, error.detail)  # noqa: TRY400 - no traceback
            return False
        return True
