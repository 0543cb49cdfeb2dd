"""How many leases a push session asks for.

A lease that is pushed to a consumer counts as a delivery, although nobody may have taken it. So a session with a
credit of 1 asks for a lease only while somebody waits for one: a place that becomes free, for example because a
lease expires, stays free. A larger credit is meant to have leases wait in the consumer, and is not changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Demand:
    def __init__(self, credit: int, set_credit: Callable[[int], None]) -> None:
        """`credit` is what the session has asked for at its start."""
        self._set_credit = set_credit
        self._follows = credit == 1
        self._credit = credit
        self._lock = threading.Lock()
        self._waiting = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The caller waits for a lease."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def stop(self) -> None:
        """Ask for no more leases."""
        with self._lock:
            self._follows = False
            self._ask(0)

    def _change(self, by: int) -> None:
        with self._lock:
            self._waiting += by
            if self._follows:
                self._ask(min(self._waiting, 1))

    def _ask(self, credit: int) -> None:
        if credit != self._credit:
            self._credit = credit
            self._set_credit(credit)
