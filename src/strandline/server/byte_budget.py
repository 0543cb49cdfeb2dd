"""Limits the bytes that the requests or the streams of a node hold at once."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from strandline.errors import Unavailable

_RETRY_AFTER_S = 1


class ByteBudget:
    """Bytes that are held now, up to a limit. `what` names the holders in the error."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self.held = 0
        self._what = what
        self._lock = threading.Lock()

    def hold(self, size: int) -> None:
        """Add bytes; Unavailable, and nothing is added, if that exceeds the limit."""
        with self._lock:
            if self.held + size > self.limit:
                raise self.exceeded()
            self.held += size

    def hold_anyway(self, size: int) -> None:
        """Add bytes that are in memory already."""
        with self._lock:
            self.held += size

    def exceeded(self) -> Unavailable:
        detail = f"{self._what} of this node hold {self.held} bytes in memory, and {self.limit} are allowed: retry"
        return Unavailable(detail, retry_after=_RETRY_AFTER_S)

    def release(self, size: int) -> None:
        with self._lock:
            self.held -= size


class Holding:
    """The bytes that one request holds; a context manager that releases all of them."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    def add(self, size: int) -> None:
        self._budget.hold(size)
        self.size += size

    def add_anyway(self, size: int) -> None:
        self._budget.hold_anyway(size)
        self.size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.size:
            self._budget.release(self.size)
