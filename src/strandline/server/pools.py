"""Threads for blocking calls, in one bounded pool for each part that calls may wait for.

A part is what can hang by itself, such as one storage. A call runs in the pool of all parts that it may wait for.
So a part that does not answer delays only the calls that need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from strandline.errors import StrandlineError, Unavailable
from strandline.server.answers import Answers

log = logging.getLogger(__name__)
_T = TypeVar("_T")

# How long a request waits for a thread before it is refused.
_PATIENCE_S = 10.0


class Pool:
    """A few threads, and the calls that wait for one of them. Used on the event loop only."""

    def __init__(self, what: str, threads: int, most_waiting: int | None, answers: Answers) -> None:
        """`what` names what the calls wait for. Without `most_waiting`, calls wait for a thread without limits."""
        self.what = what
        self.running = 0
        self.waiting = 0
        self._background: set[asyncio.Task[None]] = set()
        self._most_waiting = most_waiting
        self._answers = answers
        self._free = asyncio.Semaphore(threads)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="strandline-http")

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Run a blocking call in a thread. Unavailable, without a call, if no thread becomes free in time."""
        if self._free.locked():
            await self._wait_for_thread()
        else:
            await self._free.acquire()  # returns at once
        self._answers.refuse_if_given_up()
        self.running += 1
        return await self._answers.of(
            lambda done: self._executor.submit(_report, done, call, *arguments), self._ended
        )

    async def _wait_for_thread(self) -> None:
        limit = self._most_waiting
        if limit is not None and self.waiting >= limit:
            raise Unavailable(f"too many requests wait for {self.what}; retry later", retry_after=1)
        self.waiting += 1
        try:
            async with asyncio.timeout(None if limit is None else _PATIENCE_S):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{self.what} does not answer earlier requests; retry later", retry_after=5
            ) from None
        finally:
            self.waiting -= 1

    def _ended(self) -> None:
        self.running -= 1
        self._free.release()

    def start(self, call: Callable[[], object]) -> None:
        """Run a call in a thread, and do not wait for it."""
        task = asyncio.ensure_future(self._run_alone(call))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run_alone(self, call: Callable[[], object]) -> None:
        try:
            await self.run(call)
        except StrandlineError as error:
            log.info("a call in the background failed: %s", error.detail)
        except Exception:
            log.exception("a call in the background failed")

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting or self._background)

    def give_up(self) -> None:
        """Wake the calls that wait for a thread; they are refused."""
        for _ in range(self.waiting):
            self._free.release()

    def close(self) -> None:
        """Start no more calls. Does not wait for those that run."""
        self._executor.shutdown(wait=False)


class Pools:
    """The pools of a node, each created when it is first needed."""

    def __init__(self, threads: int, most_waiting: int, answers: Answers) -> None:
        """Every pool has so many threads, and so many requests may wait for them."""
        self._threads = threads
        self._most_waiting = most_waiting
        self._answers = answers
        self._pools: dict[tuple[str, frozenset[str]], Pool] = {}
        #: For the chores of the rooms, which never wait behind requests.
        self.chores = self._get("chores", (), None)

    def of(self, parts: Collection[str]) -> Pool:
        """The pool of requests that may wait for these parts."""
        return self._get("", parts, self._most_waiting)

    def of_streams(self, parts: Collection[str]) -> Pool:
        """The pool of streams that may wait for these parts: many streams do not delay requests.

        Every stream has at most one call, so that the limit of open streams bounds the calls that wait.
        """
        return self._get("streams of ", parts, None)

    def of_changes(self, parts: Collection[str]) -> Pool:
        """The pool of changes in several steps that may wait for these parts. A step must not be refused."""
        return self._get("changes of ", parts, None)

    def _get(self, kind: str, parts: Collection[str], most_waiting: int | None) -> Pool:
        key = kind, frozenset(parts)
        found = self._pools.get(key)
        if found is None:
            what = kind + " and ".join(sorted(parts))
            found = self._pools[key] = Pool(what, self._threads, most_waiting, self._answers)
        return found

    def __iter__(self) -> Iterator[Pool]:
        return iter([*self._pools.values()])

    @property
    def busy(self) -> bool:
        return any(pool.busy for pool in self)

    def give_up(self) -> None:
        """Refuse the calls that wait for a thread. Those that run get the answer OutcomeUnknown."""
        self._answers.give_up()
        for pool in self:
            pool.give_up()

    def close(self) -> None:
        for pool in self:
            pool.close()


def _report(done: Callable[[Any], None], call: Callable[..., Any], *arguments: Any) -> None:
    try:
        outcome = call(*arguments)
    except BaseException as error:  # noqa: BLE001 - the waiting request gets it
        outcome = error
    done(outcome)
