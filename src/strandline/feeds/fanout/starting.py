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
from strandline.feeds.fanout.book import REBUILD, FanoutBook
from strandline.feeds.fanout.delivery import FanoutPlace
from strandline.feeds.fanout.process import FanoutProcess
from strandline.feeds.fanout.rebuild import ArchivedPosts, Rebuild
from strandline.feeds.fanout.values import FanoutLetter, FanoutOptions, FanoutRoute
from strandline.feeds.settings import FeedSections
from strandline.feeds.storage.connect import FILE
from strandline.feeds.storage.port import FeedStore
from strandline.log.event_types import refuse_actions
from strandline.log.local import LocalLog
from strandline.log.range_source import RangeSource

# A rebuild has no lease that others wait for.
_NO_LIMIT_MS = 2**63


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
        keeper = self._keeper("the fan-out's lease", self.settings.coordination.stall_timeout_ms)
        return FanoutProcess(place, batches, book, self.store(), self._leases(), keeper, self.clock)

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
        keeper = self._keeper("the registration of a rebuild", _NO_LIMIT_MS, REBUILD)
        batches = self.batches(place, route)
        return Rebuild(place, route, self.source(), book, batches, archived, keeper, self.clock)

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
        """What each running fan-out last reported, by the name of the process. Creates no file."""
        return {owner: text for owner, text in self._reports().items() if not owner.startswith(REBUILD)}

    def rebuilds(self) -> dict[str, str]:
        """As `progress`, of the rebuilds that run."""
        found = self._reports().items()
        return {owner.removeprefix(REBUILD): text for owner, text in found if owner.startswith(REBUILD)}

    def letters(self, limit: int, after: str) -> list[FanoutLetter]:
        """See `Feeds.fanout_letters`. Creates no file."""
        return self.book().letters(limit, after) if self._is_made() else []

    def _reports(self) -> dict[str, str]:
        return self._leases().owners() if self._is_made() else {}

    def _is_made(self) -> bool:
        return bool(self.settings.feeds.database_url) or (self.databases.data / FILE).exists()

    def _keeper(self, what: str, stall_ms: int, kind: str = "") -> LeaseKeeper:
        return LeaseKeeper(
            what, self._leases(), self.settings.coordination.session_timeout_ms, stall_ms, kind=kind
        )

    def _leases(self) -> ProcessLeases:
        return self.book().processes(self.settings.coordination.session_timeout_ms)
