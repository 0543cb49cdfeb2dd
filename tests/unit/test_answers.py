"""How results of threads reach the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from strandline.errors import Unavailable
from strandline.server.answers import Answers

Done = Callable[[object], None]


def test_results_of_one_thread_wake_the_loop_once():
    """Every request gets its own result or error."""

    async def ask() -> list[object]:
        loop = asyncio.get_running_loop()
        wake, woken = loop.call_soon_threadsafe, []
        loop.call_soon_threadsafe = lambda *call: (woken.append(call), wake(*call))[1]  # type: ignore[method-assign]
        answers, waiting = Answers(), []
        asked = [asyncio.ensure_future(answers.of(waiting.append)) for _ in range(3)]
        await asyncio.sleep(0)

        def answer() -> None:
            for number, done in enumerate(waiting):
                done(Unavailable("no") if number == 1 else number)

        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert len(woken) == 1
        return found

    first, error, last = asyncio.run(ask())
    assert (first, last) == (0, 2)
    assert isinstance(error, Unavailable)


def test_a_result_at_once_is_a_result():
    """`start` may call back in its own thread, before it returns."""
    answers = Answers()
    for number in range(3):  # each in a loop of its own
        assert asyncio.run(answers.of(lambda done, number=number: done(number))) == number


def test_a_result_that_nobody_waits_for_is_dropped():
    """A late result does no harm after a timeout."""
    answers = Answers()
    late: list[Done] = []

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await answers.of(late.append)
        late[0](1)
        assert await answers.of(lambda done: done(2)) == 2

    asyncio.run(ask())
    late[0](3)  # after the end of the loop
