"""The thread pools of a node: isolation, limits, and the end of all waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from services import DEADLINE_S
from strandline.errors import NotFound, OutcomeUnknown, Unavailable
from strandline.server import pools as module
from strandline.server.answers import Answers
from strandline.server.pools import Pools


class Scene:
    """Pools with two threads each and space for three waiting calls, and calls that hang until the end."""

    def __init__(self) -> None:
        self.pools = Pools(2, 3, Answers())
        self.resumed = threading.Event()
        self.calls = 0

    def hang(self) -> str:
        self.calls += 1
        self.resumed.wait(DEADLINE_S)
        return "done"

    async def start(self, count: int, *parts: str) -> list[asyncio.Task[str]]:
        """Start hanging calls, and return when each of them runs or waits."""
        pool = self.pools.of(parts)
        before = pool.running + pool.waiting
        tasks = [asyncio.create_task(pool.run(self.hang)) for _ in range(count)]
        await becomes(lambda: pool.running + pool.waiting == before + count)
        return tasks


async def becomes(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - only tests wait like this
        await asyncio.sleep(0)


def play(act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    scene = Scene()
    try:
        asyncio.run(asyncio.wait_for(act(scene), DEADLINE_S))
    finally:
        scene.resumed.set()
        scene.pools.close()


def test_a_part_that_hangs_delays_no_other_part():
    """Calls wait only for those of the same parts; calls of several parts have a pool of their own."""

    async def act(scene: Scene) -> None:
        hung = await scene.start(5, "one")
        for parts in (["other"], ["one", "other"]):
            assert await scene.pools.of(parts).run(lambda: "at once") == "at once"
        assert scene.pools.of(["one", "other"]) is scene.pools.of(["other", "one"])
        assert await scene.pools.chores.run(lambda: "at once") == "at once"
        assert scene.calls == 2
        scene.resumed.set()
        assert await asyncio.gather(*hung) == ["done"] * 5

    play(act)


def test_a_call_that_does_not_fit_is_refused():
    """The refusal names the part. Streams have no limit: their number is limited."""

    async def act(scene: Scene) -> None:
        hung = await scene.start(5, "storage 'one'")
        with pytest.raises(Unavailable, match="wait for storage 'one'"):
            await scene.pools.of(["storage 'one'"]).run(scene.hang)
        streams = scene.pools.of_streams(["storage 'one'"])
        steps = [asyncio.create_task(streams.run(scene.hang)) for _ in range(20)]
        await becomes(lambda: streams.waiting == 18)
        scene.resumed.set()
        assert await asyncio.gather(*hung, *steps) == ["done"] * 25

    play(act)


def test_a_call_that_waits_too_long_is_refused(monkeypatch):
    """It is refused before it runs, so that nothing has happened."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)

    async def act(scene: Scene) -> None:
        _, _, late = await scene.start(3, "one")
        with pytest.raises(Unavailable, match="does not answer"):
            await late
        assert scene.calls == 2

    play(act)


def test_a_caller_that_leaves_keeps_its_thread_busy():
    """A thread is free only when its call has ended, and not when the caller no longer waits."""

    async def act(scene: Scene) -> None:
        first, _ = await scene.start(2, "one")
        first.cancel()
        (third,) = await scene.start(1, "one")
        pool = scene.pools.of(["one"])
        assert (pool.running, pool.waiting) == (2, 1)
        scene.resumed.set()
        assert await third == "done"

    play(act)


def test_a_call_in_the_background_is_busy_until_it_ends():
    """A stop waits for it. Its errors are logged and do not disturb anybody."""

    async def act(scene: Scene) -> None:
        pool = scene.pools.of(["one"])
        pool.start(scene.hang)
        pool.start(lambda: 1 // 0)
        assert scene.pools.busy
        scene.resumed.set()
        await becomes(lambda: not scene.pools.busy)

    play(act)


def test_giving_up_answers_everybody():
    """The outcome of calls that run is unknown. Calls that wait, and later ones, never happen."""

    async def act(scene: Scene) -> None:
        tasks = await scene.start(4, "one")
        await becomes(lambda: scene.calls == 2)
        scene.pools.give_up()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown, Unavailable, Unavailable]
        with pytest.raises(Unavailable):
            await scene.pools.of(["other"]).run(scene.hang)
        assert scene.calls == 2

    play(act)


def test_a_future_goes_on_when_nobody_waits_for_it():
    """A result, an error, and a wait that ends early."""

    async def act(_: Scene) -> None:
        answers, work = Answers(), [Future[str]() for _ in range(3)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await answers.of_future(work[0])
        work[0].set_result("late")
        assert await answers.of_future(work[0]) == "late"
        work[1].set_exception(NotFound("nothing"))
        with pytest.raises(NotFound):
            await answers.of_future(work[1])
        waiting = asyncio.create_task(answers.of_future(work[2]))
        await asyncio.sleep(0)
        answers.give_up()
        with pytest.raises(OutcomeUnknown):
            await waiting
        assert not work[2].cancelled()

    play(act)
