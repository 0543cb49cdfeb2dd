"""Which requests share a call, and what each of them gets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from strandline.errors import Unavailable
from strandline.server import shared_calls
from strandline.server.answers import Answers
from strandline.server.pools import Pool
from strandline.server.shared_calls import SharedCalls


class Doubling:
    """A call that can be held; it remembers what it was called with."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.called = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.calls.append([*items])
        self.called.set()
        self.may_go_on.wait()
        if 13 in items:
            raise Unavailable("no thirteen")
        return [2 * item for item in items]


def test_what_arrives_during_a_call_shares_the_next_one():
    """Every request gets the answers to its own items."""
    double = Doubling()
    double.may_go_on.clear()

    async def ask() -> list[Sequence[int]]:
        pool, shared = Pool("the test", 4, 10, Answers()), SharedCalls(10)
        first = asyncio.create_task(shared.run(pool, "double", double, [1]))
        await asyncio.to_thread(double.called.wait)
        others = [asyncio.create_task(shared.run(pool, "double", double, items)) for items in ([2, 3], [4], [5])]
        alone = asyncio.create_task(shared.run(pool, "another", lambda items: [*items], [6]))
        assert await alone == [6]  # another kind does not wait
        double.may_go_on.set()
        found = await asyncio.gather(first, *others)
        assert await shared.run(pool, "double", double, [7]) == [14]
        pool.close()
        return found

    assert asyncio.run(ask()) == [[2], [4, 6], [8], [10]]
    assert double.calls == [[1], [2, 3, 4, 5], [7]]


def test_a_call_is_not_too_large(monkeypatch):
    """A request is never divided."""
    monkeypatch.setattr(shared_calls, "_MOST_ITEMS", 3)
    double = Doubling()

    async def ask() -> None:
        pool, shared = Pool("the test", 4, 10, Answers()), SharedCalls(10)
        asked = ([1, 2], [3], [4], [5, 6, 7, 8], [9])
        found = await asyncio.gather(*(shared.run(pool, "double", double, items) for items in asked))
        assert found == [[2 * item for item in items] for items in asked]
        pool.close()

    asyncio.run(ask())
    assert double.calls == [[1, 2, 3], [4], [5, 6, 7, 8], [9]]


def test_all_requests_of_a_call_get_its_error():
    """The requests after it do not."""
    double = Doubling()

    async def ask() -> list[object]:
        pool, shared = Pool("the test", 4, 10, Answers()), SharedCalls(10)
        asked = [shared.run(pool, "double", double, [item]) for item in (12, 13)]
        found: list[object] = await asyncio.gather(*asked, return_exceptions=True)
        assert await shared.run(pool, "double", double, [1]) == [2]
        pool.close()
        return found

    assert [type(one) for one in asyncio.run(ask())] == [Unavailable, Unavailable]


@pytest.mark.parametrize("most_waiting", [0, 10])
def test_requests_do_not_wait_for_ever(monkeypatch, most_waiting):
    """They are refused if too many wait, or if the call before them takes too long."""
    monkeypatch.setattr(shared_calls, "_PATIENCE_S", 0.01)
    double = Doubling()
    double.may_go_on.clear()

    async def ask() -> None:
        pool, shared = Pool("the test", 4, 10, Answers()), SharedCalls(most_waiting)
        first = asyncio.create_task(shared.run(pool, "double", double, [1]))
        await asyncio.to_thread(double.called.wait)
        for _ in range(2):
            with pytest.raises(Unavailable, match="does not answer" if most_waiting else "too many requests"):
                await shared.run(pool, "double", double, [2])
        double.may_go_on.set()
        assert await first == [2]
        pool.close()

    asyncio.run(ask())
    assert double.calls == [[1]]
