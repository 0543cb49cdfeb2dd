"""Runs calls of the log in threads that belong to the storages which the calls may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from strandline.errors import Unavailable
from strandline.log.serving import ServedLog, Steps, Wake
from strandline.server.pools import Pool
from strandline.server.routing import Call, ServerState

_T = TypeVar("_T")
# Wake-ups continue a change at once; this interval covers a wake-up that was lost, and the timeout of the change.
_POLL_SECONDS = 0.05
_UNFINISHED = object()


async def run_in_storages(
    call: Call[ServedLog], names: Collection[str], work: Callable[..., _T], *given: Any
) -> _T:
    """Run a call that may wait for any storage with timelines of these event types."""
    storages = await find_storages(call.state, call.room, names)
    return await pool_of(call.state, storages).run(work, *given)


async def find_storages(
    state: ServerState, log: ServedLog, names: Collection[str], *, active: bool = False
) -> frozenset[str]:
    """The storages of event types. The catalog is asked only if this process has not looked for them before.

    The result may be out of date: then calls run in the threads of the former storages until one of them, or any
    other lookup, has found the change.
    """
    known = log.known_storages(names, active=active)
    if known is not None:
        return known
    return await state.pool_of_room("log").run(lambda: log.find_storages(names, active=active))


async def active_storage(call: Call[ServedLog]) -> frozenset[str]:
    """The storage that new events of the event type go to; none if the event type does not exist."""
    return await find_storages(call.state, call.room, [call.path("name")], active=True)


def pool_of(state: ServerState, storages: Collection[str]) -> Pool:
    """The pool of calls that may wait for these storages; without any, of those that wait for the catalog only."""
    return state.pools.of(parts_of(storages)) if storages else state.pool_of_room("log")


def stream_pool(call: Call[ServedLog], names: Collection[str]) -> Pool:
    """The pool for the next step of a stream of these event types. A switch may change it."""
    known = call.room.known_storages(names)
    return call.state.pools.of_streams(parts_of(known) if known else ["the log"])


def parts_of(storages: Collection[str]) -> list[str]:
    return [f"storage {storage_id!r}" for storage_id in storages]


async def finish(state: ServerState, storages: Collection[str], begin: Callable[[Wake], Steps[_T]]) -> _T:
    """Do all steps of a change that may wait for these storages; no thread waits between the steps.

    When the node stops, the change is given up.
    """
    pool = state.pools.of_changes(parts_of(storages) or ["the log"])
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    steps = begin(wake)
    while not state.draining.is_set():
        woken.clear()
        result = await pool.run(_advance, steps)
        if result is not _UNFINISHED:
            done: _T = result
            return done
        await state.sleep(woken, _POLL_SECONDS)
    stopping = Unavailable("this node is stopping, nothing was changed; use another node", retry_after=1)
    return await pool.run(_abandon, steps, stopping)


def _advance(steps: Steps[Any]) -> Any:
    """Continue until the steps wait again, or until their end: returns their result then."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    return _UNFINISHED


def _abandon(steps: Steps[Any], error: Unavailable) -> Any:
    try:
        steps.throw(error)
    except StopIteration as end:
        return end.value
    raise error
