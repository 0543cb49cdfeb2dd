"""The fan-out of a platform: starts a process, and lists the processes that run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.engine.lease_keeper import LeaseKeeper
from strandline.engine.process_leases import ProcessLeases
from strandline.engine.task_runner import InThisProcess, TaskRunner
from strandline.feeds.fanout.batches import FanoutBatches
from strandline.feeds.fanout.book import FanoutBook
from strandline.feeds.fanout.delivery import FanoutPlace
from strandline.feeds.fanout.process import FanoutProcess
from strandline.feeds.fanout.rebuild import ArchivedPosts, Rebuild
from strandline.feeds.fanout.values import FanoutOptions, FanoutRoute
from strandline.feeds.settings import FeedSections
from strandline.feeds.storage.connect import FILE
from strandline.feeds.storage.port import FeedStore
from strandline.log.event_types import refuse_actions
from strandline.log.local import LocalLog
from strandline.log.range_source import RangeSource


@dataclass(frozen=True)
class Fanouts:
    log: LocalLog
    #: Opens the store when it is first needed.
    store: Callable[[], FeedStore]
    databases: Databases
    settings: FeedSections
    clock: Clock

    def process(self, options: FanoutOptions, runner: TaskRunner | None = None) -> FanoutProcess:
        """A process of the fan-out, not started. Conflict if this database has another fan-out."""
        options.check()
        route = self._route(options)
        book = self.book()
        book.begin(route)
        place = self.place(options)
        batches = self.batches(place, route, runner)
        leases, coordination = self._leases(), self.settings.coordination
        keeper = LeaseKeeper(
            "the fan-out's lease", leases, coordination.session_timeout_ms, coordination.stall_timeout_ms
        )
        return FanoutProcess(place, batches, book, self.store(), leases, keeper, self.clock)

    def batches(self, place: FanoutPlace, route: FanoutRoute, runner: TaskRunner | None = None) -> FanoutBatches:
        return FanoutBatches(
            place, route, self.source(), self.book(), self.store(), runner or InThisProcess(), self.clock
        )

    def rebuild(self, archived: ArchivedPosts) -> Rebuild:
        """A rebuild, not started. NotFound if there is no fan-out in this database."""
        book = self.book()
        route = book.route()
        names = {name: getattr(route, name) for name in ("posts", "follows", "home", "recent", "metadata")}
        place = self.place(FanoutOptions(**names))
        return Rebuild(place, route, self.source(), book, self.batches(place, route), archived, self.clock)

    def book(self) -> FanoutBook:
        return FanoutBook(self.databases.get(self.settings.feeds.database_url, FILE))

    def source(self) -> RangeSource:
        return RangeSource(self.log.types, self.databases.data, self.settings.log)

    def place(self, options: FanoutOptions) -> FanoutPlace:
        return FanoutPlace(self.settings.feeds, str(self.databases.data.resolve()), options)

    def _route(self, options: FanoutOptions) -> FanoutRoute:
        posts, follows = (self.log.types.entry(name) for name in (options.posts, options.follows))
        for entry in (posts, follows):
            refuse_actions(entry)
        names = {name: getattr(options, name) for name in ("posts", "follows", "home", "recent", "metadata")}
        return FanoutRoute(**names, posts_id=posts.id, follows_id=follows.id)

    def progress(self) -> dict[str, str]:
        """What each running process last reported, by the name of the process. Creates no file."""
        made = self.settings.feeds.database_url or (self.databases.data / FILE).exists()
        return self._leases().owners() if made else {}

    def _leases(self) -> ProcessLeases:
        return self.book().processes(self.settings.coordination.session_timeout_ms)
