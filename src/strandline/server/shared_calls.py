"""Requests of the same kind share calls: a statement for many items costs little more than one for a single."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from strandline.errors import Unavailable
from strandline.server.pools import Pool

#: The items of one call, if it has several requests: what a storage puts into one statement.
_MOST_ITEMS = 500
# How long requests wait for a call before theirs, until they are refused.
_PATIENCE_S = 10.0


class _Request(NamedTuple):
    items: Sequence[Any]
    answers: asyncio.Future[Sequence[Any]]


class _Lane:
    """The requests of one kind that wait for the call that runs now."""

    def __init__(self, pool: Pool, call: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self.pool = pool
        self.call = call
        self.waiting: deque[_Request] = deque()

    async def run(self) -> None:
        """Call until no request waits. All requests of a call get its error."""
        while self.waiting:
            group = self._next_group()
            self._set_timer()
            try:
                found = await self.pool.run(self.call, [item for request in group for item in request.items])
            except Exception as error:  # noqa: BLE001 - the requests get it
                for request in group:
                    if not request.answers.done():
                        request.answers.set_exception(error)
            else:
                _hand_out(group, found)
            finally:
                self._timer.cancel()

    def _next_group(self) -> list[_Request]:
        group = [self.waiting.popleft()]
        size = len(group[0].items)
        while self.waiting and size + len(self.waiting[0].items) <= _MOST_ITEMS:
            group.append(self.waiting.popleft())
            size += len(group[-1].items)
        return group

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._refuse_waiting)

    def _refuse_waiting(self) -> None:
        self._set_timer()
        while self.waiting:
            answers = self.waiting.popleft().answers
            if not answers.done():
                detail = f"{self.pool.what} does not answer earlier requests; retry later"
                answers.set_exception(Unavailable(detail, retry_after=5))


class SharedCalls:
    """Used on the event loop only. What arrives during a call goes into the next one."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._lanes: dict[Hashable, _Lane] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def run(
        self, pool: Pool, kind: Hashable, call: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]
    ) -> Sequence[Any]:
        """The answers to the items. `call` answers every item, and is the same for all requests of one kind."""
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = _Lane(pool, call)
            self._start(kind, lane)
        elif len(lane.waiting) >= self._most_waiting:
            raise Unavailable(f"too many requests wait for {pool.what}; retry later", retry_after=1)
        answers: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        lane.waiting.append(_Request(items, answers))
        return await answers

    def _start(self, kind: Hashable, lane: _Lane) -> None:
        task = asyncio.create_task(lane.run())
        self._running.add(task)
        task.add_done_callback(lambda ended: self._ended(kind, lane, ended))

    def _ended(self, kind: Hashable, lane: _Lane, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if lane.waiting:  # a request came after the last look
            self._start(kind, lane)
        else:
            del self._lanes[kind]


def _hand_out(group: Sequence[_Request], found: Sequence[Any]) -> None:
    start = 0
    for request in group:
        end = start + len(request.items)
        if not request.answers.done():  # nobody waits any more
            request.answers.set_result(found[start:end])
        start = end
