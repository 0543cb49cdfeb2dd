"""The feeds room in this process, over the log and the store."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.engine.database import Database
from strandline.errors import Invalid, InvalidCursor, Miss, OutcomeUnknown, StrandlineError, Unavailable
from strandline.feeds import rules
from strandline.feeds.dead_letters import DeadOperations
from strandline.feeds.fanout.starting import Fanouts
from strandline.feeds.fanout.values import FanoutLetter
from strandline.feeds.model import (
    AppendEntry,
    Applied,
    DeadOperation,
    DeleteEntry,
    DropFeed,
    Entry,
    FeedAnswer,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
    feeds_of,
    narrowed,
)
from strandline.feeds.operation_log import OperationLog, name_of
from strandline.feeds.recovery import Recovery
from strandline.feeds.retries import LATE_MS, Retries
from strandline.feeds.room import Feeds
from strandline.feeds.settings import FeedSections
from strandline.feeds.storage.connect import FILE, connect
from strandline.feeds.storage.port import FeedStore
from strandline.feeds.times import OperationClock
from strandline.feeds.writers import Writers
from strandline.log.local import LocalLog
from strandline.room import Chore, CounterMetric, CounterValues, GaugeMetric, GaugeValues, Room

log = logging.getLogger(__name__)

_EXPIRY_INTERVAL_MS = 600_000
_MEASURE_INTERVAL_MS = 10_000
_MARK_INTERVAL_MS = 10_000
_TAKEOVER_INTERVAL_MS = 30_000
# More than an operation waits for the store.
_APPLY_MS = 60_000
# More than until the operations are applied that a killed process has left.
_LEFT_MS = LATE_MS + 2 * _TAKEOVER_INTERVAL_MS
_OPERATIONS = CounterMetric("strandline_feed_operations", "Operations on feeds.", "operation")
_REACHED = CounterMetric(
    "strandline_feed_writes", "Feeds that operations reached, counted for each operation.", "operation"
)
_READS = CounterMetric("strandline_feed_reads", "Reads of feeds.", "status")
_EXPIRED = CounterMetric("strandline_feeds_expired", "Feeds that expired because nobody read them.", "reason")
_DEAD = GaugeMetric(
    "strandline_feed_dead_letters", "Operations on feeds that were refused or given up.", "operation"
)
_WAITING = GaugeMetric("strandline_feed_retries", "Operations on feeds that wait for a retry.", "state")


class LocalFeeds(Feeds, Room):
    def __init__(self, log: LocalLog, databases: Databases, settings: FeedSections, clock: Clock) -> None:
        self._databases = databases
        self._sections = settings
        self._settings = settings.feeds
        self._clock = clock
        self._times = OperationClock(clock)
        self._platform_log = log
        self._log = OperationLog(log, settings.log.max_event_bytes)
        self._lock = threading.Lock()
        self._opened: FeedStore | None = None
        self._letters: DeadOperations | None = None
        settle_ms = settings.log.publish_deadline_ms + settings.feeds.retry_ms + _APPLY_MS + _LEFT_MS
        self._recovery = Recovery(log, self.store, clock, settle_ms)
        self._writers = Writers(self._database, clock)
        self._retries = Retries(self._apply_again, self._dead_operations, settings.feeds.retry_ms)
        self._counts: dict[CounterMetric, Counter[str]] = {
            metric: Counter() for metric in (_OPERATIONS, _REACHED, _READS, _EXPIRED)
        }
        self._dead: dict[str, float] = {}
        #: The store of a server may lack recorded operations, until they are applied.
        self._behind = False

    def store(self) -> FeedStore:
        """Opened when it is first needed: many processes only use other rooms."""
        with self._lock:
            if self._opened is None:
                self._opened = connect(self._settings, self._databases, self._clock)
            return self._opened

    def _dead_operations(self) -> DeadOperations:
        with self._lock:
            if self._letters is None:
                self._letters = DeadOperations(self._database(), self._clock)
            return self._letters

    def _database(self) -> Database:
        return self._databases.get(self._settings.database_url, FILE)

    # -- writes

    def append(
        self,
        entry: Entry,
        feeds: Sequence[str],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> int:
        time = self._time(operation_time, operation_ms)
        return self._write(AppendEntry(time, rules.entry(entry), rules.names(feeds)))

    def delete(
        self,
        entry: Entry | int,
        feeds: Sequence[str],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> int:
        time = self._time(operation_time, operation_ms)
        return self._write(DeleteEntry(time, rules.ids([entry])[0], rules.names(feeds)))

    def set(
        self,
        feed: str,
        entries: Sequence[Entry],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> None:
        time = self._time(operation_time, operation_ms)
        self._write(SetFeed(time, rules.name(feed), rules.entries(entries)))

    def merge(
        self,
        feed: str,
        entries: Sequence[Entry],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> bool:
        time = self._time(operation_time, operation_ms)
        return bool(self._write(MergeEntries(time, rules.name(feed), rules.entries(entries))))

    def unmerge(
        self,
        feed: str,
        entries: Sequence[Entry | int],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> bool:
        time = self._time(operation_time, operation_ms)
        return bool(self._write(UnmergeEntries(time, rules.name(feed), rules.ids(entries))))

    def drop(self, feed: str, *, operation_time: int | None = None, operation_ms: int | None = None) -> None:
        self._write(DropFeed(self._time(operation_time, operation_ms), rules.name(feed)))

    def operation_time(self) -> int:
        return self._times.next()

    def _time(self, operation_time: int | None, operation_ms: int | None) -> int:
        given = rules.given_time(operation_time, operation_ms)
        return self._times.next() if given is None else given

    def _write(self, operation: Operation) -> int:
        """Record and apply an operation. Feeds that fail are retried later; raises if all of them failed."""
        self._refuse_old(operation)
        if not feeds_of(operation):
            return 0
        if not self._settings.record:
            return self._apply(operation)
        with self._writers.writing():
            self._record(operation)
            return self._apply(operation)

    def _record(self, operation: Operation) -> None:
        try:
            self._log.record(operation)
        except OutcomeUnknown:
            self._writers.doubt()
            raise

    def _apply(self, operation: Operation) -> int:
        (applied,) = self.store().apply([operation])
        self._count(operation, applied)
        if applied.failed:
            error = next(iter(applied.failed.values()))
            self._keep(narrowed(operation, tuple(applied.failed)), error)
            if len(applied.failed) == len(feeds_of(operation)):
                raise error
        return applied.accepted

    def _keep(self, rest: Operation, error: StrandlineError) -> None:
        """Retry the failed part, also if this process is killed. OutcomeUnknown if it cannot be kept for that."""
        try:
            self._retries.keep(rest, error)
        except StrandlineError as cause:
            raise OutcomeUnknown(
                f"{len(feeds_of(rest))} feeds were not reached ({error.detail}), and the operation cannot be kept "
                f"for a retry: {cause.detail}; repeat it with the same operation time"
            ) from cause

    def _refuse_old(self, operation: Operation) -> None:
        reason = self._refusal(operation)
        if reason is not None:
            self._dead_operations().add(operation, reason)
            raise Invalid(f"the operation is refused and kept as a dead letter: {reason}")

    def _refusal(self, operation: Operation) -> str | None:
        """Why an operation must not be applied any more."""
        if rules.is_too_old(operation.time, self._clock.now_ms(), self._settings.grace_ms):
            return f"its operation time is older than feeds.grace_ms ({self._settings.grace_ms} ms)"
        return None

    def _apply_again(self, operations: Sequence[Operation]) -> list[Applied]:
        found = self.store().apply(operations)
        for operation, applied in zip(operations, found, strict=True):
            self._count(operation, applied)
        return found

    def _count(self, operation: Operation, applied: Applied) -> None:
        name = name_of(operation)
        with self._lock:
            self._counts[_OPERATIONS][name] += 1
            self._counts[_REACHED][name] += applied.accepted

    # -- reads

    def get(self, feed: str, offset: int = 0, length: int = 20) -> list[Entry]:
        (answer,) = self.get_many([feed], offset, length)
        return _entries(answer)

    def get_since(self, feed: str, entry_id: int) -> list[Entry]:
        found = self.store().read_since(rules.name(feed), rules.entry_id(entry_id))
        answer = FeedAnswer(feed, "miss") if found is None else FeedAnswer(feed, "hit", found)
        answer = self._checked(answer)
        self._count_reads([answer.status])
        return _entries(answer)

    def get_many(self, feeds: Sequence[str], offset: int = 0, length: int = 20) -> list[FeedAnswer]:
        names = rules.names(feeds)
        page = rules.page_of_many(len(names), offset, length, self._settings.cap)
        found = [*map(self._checked, self.store().read(names, *page))]
        self._count_reads([answer.status for answer in found])
        return found

    def _checked(self, answer: FeedAnswer) -> FeedAnswer:
        """An error instead of a miss if the feed may only be missing because the store is behind."""
        if answer.status == "miss" and self._behind:
            return FeedAnswer(answer.name, "error", error=_unrecovered())
        return answer

    def _count_reads(self, statuses: Sequence[str]) -> None:
        with self._lock:
            self._counts[_READS].update(statuses)

    def replay(self) -> int:
        """Apply the recorded operations that a store from a snapshot does not have yet; returns their number.

        Nodes may write to the feeds meanwhile, because operations are idempotent.
        """
        count = self._recovery.replay(self._is_refused)
        self._behind = False
        return count

    def _is_refused(self, operation: Operation) -> bool:
        reason = self._refusal(operation)
        if reason is not None:
            self._dead_operations().add(operation, reason)
        return reason is not None

    # -- dead letters

    def dead_letters(self, *, limit: int = 100, after: int = 0) -> list[DeadOperation]:
        return self._dead_operations().after(after, limit)

    @property
    def fanouts(self) -> Fanouts:
        """Beyond the contract: the fan-out of posts, which needs this process."""
        return Fanouts(self._platform_log, self.store, self._databases, self._sections, self._clock)

    def fanout_letters(self, *, limit: int = 100, after: str = "") -> list[FanoutLetter]:
        return self.fanouts.letters(limit, after)

    # -- for the process that runs the room

    def start(self) -> None:
        """A server is not ready before it has compared the store with the log. A chore does that."""
        try:
            self._behind = self._settings.record and self._recovery.is_recorded()
        except StrandlineError:
            self._behind = True  # not known yet

    def check_ready(self) -> None:
        if self._behind:
            raise _unrecovered()
        if self._opened is not None:
            self._opened.check()

    def chores(self) -> list[Chore]:
        return [
            Chore("expiry of feeds", _EXPIRY_INTERVAL_MS, self._expire),
            Chore("counting dead letters of feeds", _MEASURE_INTERVAL_MS, self._measure),
            Chore("taking over the retries of nodes that have ended", _TAKEOVER_INTERVAL_MS, self._take_over),
            Chore("marking how far operations on feeds are applied", _MARK_INTERVAL_MS, self._mark),
        ]

    def _expire(self) -> None:
        if self._is_used():
            expired = self.store().expire()
            with self._lock:
                self._counts[_EXPIRED]["unread"] += expired

    def _mark(self) -> None:
        try:
            if self._is_used():
                self._mark_applied()
            else:
                self._behind = False
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("operations on feeds are not marked as applied: %s", error.detail)

    def _mark_applied(self) -> None:
        self._writers.renew()
        if self._recovery.is_behind():
            self._behind |= self._recovery.is_known
            self._catch_up()
        self._behind = False
        self._writers.catch_up(self._catch_up)
        self._recovery.mark()

    def _catch_up(self) -> None:
        """Apply what may have been recorded only, before a position behind it is saved."""
        try:
            # What is too old was applied when it was recorded, in all likelihood, so it is no dead letter.
            count = self._recovery.replay(lambda operation: self._refusal(operation) is not None)
        except InvalidCursor as error:
            log.error("the store of feeds may lack operations that the log has no longer: %s", error.detail)  # noqa: TRY400 - no traceback
            self._recovery.accept()
        else:
            if count:
                log.info("%d recorded operations on feeds were applied again", count)

    def _take_over(self) -> None:
        if self._is_used():
            self._retries.take_over(self._refusal)

    def _measure(self) -> None:
        if self._is_used():
            self._dead = {name: float(count) for name, count in self._dead_operations().counts().items()}

    def _is_used(self) -> bool:
        """Whether there is a reason to open the store."""
        if self._opened is not None or self._settings.url or (self._databases.data / FILE).exists():
            return True
        return self._settings.record and self._recovery.is_recorded()  # a store that is gone must be restored

    def counts(self) -> CounterValues:
        with self._lock:
            return {metric: dict(values) for metric, values in self._counts.items()}

    def gauges(self) -> GaugeValues:
        return {_DEAD: self._dead, _WAITING: {"waiting": float(self._retries.waiting)}}

    def close(self) -> None:
        self._retries.close()
        with suppress(StrandlineError):  # then others repeat what this process has recorded, which does no harm
            self._writers.leave()
        with self._lock:
            if self._opened is not None:
                self._opened.close()


def _entries(answer: FeedAnswer) -> list[Entry]:
    if answer.error is not None:
        raise answer.error
    if answer.status == "miss":
        raise _missing(answer.name)
    return [*answer.entries]


def _unrecovered() -> Unavailable:
    return Unavailable(
        "the store of feeds may lack recorded operations, which this node applies now", retry_after=1
    )


def _missing(feed: str) -> Miss:
    return Miss(f"the feed {feed!r:.80} does not exist: it was never set, was dropped, or expired unread; set it")
