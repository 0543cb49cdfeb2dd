"""Hands the results of threads to the event loop, and ends all waits for them when the node must end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from strandline.errors import OutcomeUnknown, Unavailable

_T = TypeVar("_T")


class _Result(NamedTuple):
    waiting: asyncio.Future[Any]
    outcome: Any
    ended: Callable[[], None]


class Answers:
    """Results that arrive together wake the event loop once: a wake-up costs more than most requests."""

    def __init__(self) -> None:
        self._ready: deque[_Result] = deque()
        self._woken = False
        self._open: set[asyncio.Future[Any]] = set()
        self._given_up = False

    async def of(
        self,
        start: Callable[[Callable[[_T | BaseException], None]], object],
        ended: Callable[[], None] = lambda: None,
    ) -> _T:
        """Call `start` with a function that takes the result or the error, in any thread; wait for that.

        OutcomeUnknown if the node gives up first. `ended` is called on the event loop when the result is there,
        even if nobody waits for it any more.
        """
        self.refuse_if_given_up()
        waiting: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._open.add(waiting)
        try:
            start(lambda outcome: self._deliver(_Result(waiting, outcome, ended)))
            return await waiting
        finally:
            self._open.discard(waiting)

    async def of_future(self, future: Future[_T]) -> _T:
        """The result of a future, which goes on if nobody waits for it any more."""

        def start(done: Callable[[_T | BaseException], None]) -> None:
            future.add_done_callback(lambda found: done(found.exception() or found.result()))

        return await self.of(start)

    def _deliver(self, result: _Result) -> None:
        self._ready.append(result)
        # Checked after the result was added: the loop resets the mark before it looks for results.
        if not self._woken:
            self._woken = True
            try:
                result.waiting.get_loop().call_soon_threadsafe(self._hand_over)
            except RuntimeError:  # the loop is closed, and nobody waits
                self._woken = False

    def _hand_over(self) -> None:
        self._woken = False
        while self._ready:
            waiting, outcome, ended = self._ready.popleft()
            ended()
            if waiting.done():  # nobody waits any more
                continue
            if isinstance(outcome, BaseException):
                waiting.set_exception(outcome)
            else:
                waiting.set_result(outcome)

    # -- the end

    def refuse_if_given_up(self) -> None:
        """Unavailable if what starts now would get no answer."""
        if self._given_up:
            raise Unavailable("this node is stopping; use another node", retry_after=1)

    def give_up(self) -> None:
        """End all waits with OutcomeUnknown: the process ends before the results are there."""
        self._given_up = True
        for waiting in self._open:
            if not waiting.done():
                waiting.set_exception(
                    OutcomeUnknown("this node stopped before it knew the outcome; read before you retry")
                )
