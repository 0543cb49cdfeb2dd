"""Rebuilds feeds after a loss: the feeds of authors from the log and the archive, then home feeds from these.

A home feed is set twice with one epoch. The first set makes it empty, and from then on the fan-out reaches it. The
batch that is open at that moment may have missed the feed, so this batch is run to its end. The second set has the
content up to that batch, and the fan-out delivers everything after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline.clock import Clock
from strandline.engine.lease_keeper import LeaseKeeper
from strandline.errors import Conflict, Invalid, StrandlineError, Unavailable
from strandline.feeds import times
from strandline.feeds.fanout import rules
from strandline.feeds.fanout.batches import FanoutBatches
from strandline.feeds.fanout.book import FanoutBook
from strandline.feeds.fanout.delivery import FanoutPlace, parts
from strandline.feeds.fanout.restoring import AuthorRestore, HomeTask, LoggedPosts, PostSource, RestoreRunner
from strandline.feeds.fanout.values import FanoutRoute
from strandline.log import cursors
from strandline.log.cursors import Position
from strandline.log.range_source import RangeSource
from strandline.progress import OnProgress

_RANGE_RECORDS = 100_000
_USERS_IN_TASK = 500
# So many tasks for each core: more of them cost fewer waits for the batch that is open.
_TASKS_AT_ONCE = 4
_POLL_SECONDS = 0.2
# How long the process that has opened a batch may take to close it, before this process runs it, too.
_POLLS = 25

#: The archived posts of an event type up to some positions: those that the log does not have any more.
ArchivedPosts = Callable[[str, Mapping[int, Position]], Sequence[PostSource]]


@dataclass(frozen=True)
class RebuildOptions:
    """Which home feeds are rebuilt: of `users`, names with commas between them, or `*` for all followers.

    With `authors`, the feeds of authors are restored first; without, the store must still have them.
    """

    users: str = "*"
    authors: bool = True

    def check(self) -> None:
        if self.names == ():
            raise Invalid("the rebuild needs users; name them with --rebuild-users, or give * for all")

    @property
    def names(self) -> tuple[str, ...] | None:
        """None for all."""
        if self.users == "*":
            return None
        return tuple(dict.fromkeys(name.strip() for name in self.users.split(",") if name.strip()))


@dataclass(frozen=True)
class Rebuild:
    """Safe while the fan-out runs. A rebuild that was killed can be repeated."""

    place: FanoutPlace
    route: FanoutRoute
    source: RangeSource
    book: FanoutBook
    batches: FanoutBatches
    archived: ArchivedPosts
    keeper: LeaseKeeper
    clock: Clock

    def run(
        self, options: RebuildOptions, runner: RestoreRunner, stop: threading.Event, on_progress: OnProgress
    ) -> int:
        """Rebuild, and return the number of home feeds that were set. Unavailable if it was stopped before.

        A part of the users is done at a time, so that the feeds of the others stay as they are until then.
        """
        options.check()
        with self.keeper.alive():
            return self._run(options, runner, stop, on_progress)

    def _run(
        self, options: RebuildOptions, runner: RestoreRunner, stop: threading.Event, on_progress: OnProgress
    ) -> int:
        restored, done = 0, 0
        names = options.names
        users = [*self._all_users()] if names is None else [*names]
        for user in names or ():
            rules.check_user(user, self.place.options)

        def show() -> None:
            lag = {0: len(users) - done}
            on_progress(self.keeper.meter.measure(self.route.posts, done, lag, authors=restored))

        show()
        if options.authors:
            restored = self._restore_authors(runner)
            show()
        for some in parts(users, _USERS_IN_TASK * _TASKS_AT_ONCE * runner.parallel):
            if stop.is_set():
                break
            time = self.book.raise_clock(times.of_ms(self.clock.now_ms()))
            self._set(runner, time, some, filled=False)
            self.settle(stop)
            if stop.is_set():
                break
            self._set(runner, time, some, filled=True)
            done += len(some)
            show()
        if done < len(users):
            raise Unavailable(
                f"the rebuild was stopped after {done:,} of {len(users):,} home feeds; start it again, because "
                "some of the others may be empty"
            )
        return done

    def settle(self, stop: threading.Event) -> None:
        """Return when the batch that is open now has been closed. Runs it if no other process does."""
        plan = self.book.state().plan
        polls = 0
        while plan is not None and self.book.state_number() == plan.number and not stop.is_set():
            polls += 1
            if polls < _POLLS:
                stop.wait(_POLL_SECONDS)
                continue
            try:
                self.batches.finish()
            except Conflict:
                return  # another process has closed it

    # -- authors

    def _restore_authors(self, runner: RestoreRunner) -> int:
        now_ms = self.clock.now_ms()
        how = AuthorRestore(self.place, self.book.raise_clock(times.of_ms(now_ms)), now_ms)
        return runner.restore(how, [*self._sources()])

    def _sources(self) -> Iterator[PostSource]:
        """All posts up to the position of the fan-out: from the log, expired ones from the archive."""
        look = self.source.look(self.route.posts, 0)
        positions = self.book.state().positions.get(self.route.posts, {})
        begins: dict[int, Position] = {}
        for partition, spans in enumerate(look.spans):
            begin = cursors.begin_index(spans)
            begins[partition] = cursors.at_index(spans, begin)
            end = cursors.index_of(spans, positions[partition]) if partition in positions else begin
            for first in range(begin, end, _RANGE_RECORDS):
                between = (cursors.at_index(spans, index) for index in (first, min(first + _RANGE_RECORDS, end)))
                yield LoggedPosts(self.source.range(self.route.posts, look, partition, *between))
        yield from self.archived(self.route.posts, begins)

    # -- homes

    def _all_users(self) -> Iterator[str]:
        after = ""
        while found := self.book.users_after(after, 10_000):
            yield from found
            after = found[-1]

    def _set(self, runner: RestoreRunner, time: int, users: Sequence[str], *, filled: bool) -> None:
        tasks = [HomeTask(self.place, time, tuple(some), filled) for some in parts(users, _USERS_IN_TASK)]
        for result in runner.set_homes(tasks):
            if isinstance(result, StrandlineError):
                raise result
