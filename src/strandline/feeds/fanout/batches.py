"""The batches of the fan-out: open one, read its records, write its effects, close it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline import failpoints
from strandline.clock import Clock
from strandline.engine.task_runner import TaskRunner
from strandline.errors import Gap, Invalid, InvalidCursor, StrandlineError, Unavailable
from strandline.feeds.fanout import rules
from strandline.feeds.fanout.book import FanoutBook
from strandline.feeds.fanout.delivery import (
    AuthorPosts,
    Delivered,
    DeliveryTask,
    FanoutPlace,
    apply_to_authors,
    divided,
    hidden_posts,
)
from strandline.feeds.fanout.rules import LogRecord
from strandline.feeds.fanout.values import (
    BatchOutcome,
    FanoutLetter,
    FanoutPlan,
    FanoutRoute,
    FanoutState,
    FollowEdge,
    PostEdit,
    QueuedPost,
)
from strandline.feeds.storage.port import FeedStore
from strandline.log import cursors
from strandline.log.cursors import Position, Span
from strandline.log.range_source import LogSnapshot, RangeSource
from strandline.log.ranges import read_range

#: The records that a fan-out may read, by event type.
Looks = Mapping[str, LogSnapshot]


@dataclass(frozen=True)
class BatchDone:
    """What a batch has done: records by event type, feeds that were written to, records set aside."""

    records: Mapping[str, int]
    entries: int
    dead: int


@dataclass(frozen=True)
class Lag:
    """What is left: records by event type and partition, and posts in the queue."""

    records: Mapping[str, Mapping[int, int]]
    queued: int

    @property
    def empty(self) -> bool:
        return not (self.queued or any(count for lag in self.records.values() for count in lag.values()))


class FanoutBatches:
    """Every process may run batches: the tables accept each batch once, and its effects are idempotent."""

    def __init__(
        self,
        place: FanoutPlace,
        route: FanoutRoute,
        source: RangeSource,
        book: FanoutBook,
        store: FeedStore,
        runner: TaskRunner,
        clock: Clock,
    ) -> None:
        self._place = place
        self._options = place.options
        self._route = route
        self._source = source
        self._book = book
        self._store = store
        self._runner = runner
        self._clock = clock

    # -- what there is to do

    def look(self) -> Looks:
        """Both event types as they are now. Gap if one was deleted and created again."""
        found = {}
        for name, known in (
            (self._route.posts, self._route.posts_id),
            (self._route.follows, self._route.follows_id),
        ):
            found[name] = self._source.look(name, 0)
            if found[name].entry_id != known:
                raise Gap(f"event type {name!r} was deleted and created again; use another feeds.database_url")
        return found

    def lag(self, looks: Looks) -> Lag:
        positions = self._book.state().positions
        records = {
            name: {
                partition: max(0, cursors.end_index(spans) - self._start(name, partition, spans, positions))
                for partition, spans in enumerate(look.spans)
            }
            for name, look in looks.items()
        }
        return Lag(records, self._book.queue_length())

    def step(self, looks: Looks) -> BatchDone | None:
        """Run the open batch to its end, or the next one; None if nothing is left to do."""
        state = self._book.state()
        plan = state.plan
        if plan is None:
            plan = self._planned(state, looks)
            if not any(plan.until.values()) and not self._book.queue_length():
                return None
            self._book.open(plan)
        else:
            looks = self.look()  # the process that opened the batch may have seen more
        return self._run(plan, state, looks)

    def finish(self) -> None:
        """Run the open batch to its end, if there is one."""
        if self._book.state().plan is not None:
            self.step({})

    def _planned(self, state: FanoutState, looks: Looks) -> FanoutPlan:
        until: dict[str, dict[int, Position]] = {}
        for name, look in looks.items():
            left, ends = self._options.batch, until.setdefault(name, {})
            starts = {
                partition: self._start(name, partition, spans, state.positions)
                for partition, spans in enumerate(look.spans)
            }
            lags = {
                partition: cursors.end_index(look.spans[partition]) - start for partition, start in starts.items()
            }
            # The partitions with the largest lag come last, so that they get the share that others do not need.
            for number, partition in enumerate(sorted(lags, key=lags.__getitem__)):
                share = left // (len(lags) - number) or 1 if left > 0 else 0
                count = max(0, min(lags[partition], share))
                # An empty partition gets a position, too: then it is noticed if its first records expire unread.
                is_new = not lags[partition] and partition not in state.positions.get(name, {})
                if count or is_new:
                    ends[partition] = cursors.at_index(look.spans[partition], starts[partition] + count)
                    left -= count
        return FanoutPlan(state.number, state.clock, self._clock.now_ms(), until)

    def _start(
        self, name: str, partition: int, spans: Sequence[Span], positions: Mapping[str, Mapping[int, Position]]
    ) -> int:
        """The index of the first record to read. A new fan-out starts with the oldest one."""
        begin = cursors.begin_index(spans)
        position = positions.get(name, {}).get(partition)
        if position is None:
            return begin
        start = cursors.index_after(spans, position)
        if start < begin and self._options.lost == "stop":
            raise _expired(f"partition {partition} of {name!r} is fanned out up to {position}")
        return max(start, begin)

    # -- a batch

    def _run(self, plan: FanoutPlan, state: FanoutState, looks: Looks) -> BatchDone:
        letters: list[FanoutLetter] = []
        clock = plan.clock
        edits: list[PostEdit] = []
        edges: list[FollowEdge] = []
        counts = dict.fromkeys(looks, 0)
        # Posts first: an unfollow is later than all posts of its batch, and so hides them.
        for name in (self._route.posts, self._route.follows):
            records = self._records(name, plan, state, looks)
            for clock, record in rules.stamps(clock, plan.opened_ms, records):  # noqa: B020 - goes on after posts
                counts[name] += 1
                try:
                    if name == self._route.posts:
                        edits.append(rules.post(record.value, self._options, clock))
                    else:
                        edges.append(rules.edge(record.value, self._options, clock))
                except Invalid as error:
                    letters.append(FanoutLetter(name, record.partition, record.cursor, error.detail, record.value))
        existing = self._book.authors_of({one.follower for one in edges})
        changes = rules.last_changes(edges, existing)
        edits = rules.settled(edits)
        self._write_authors(plan, edits)
        queued, delivered = self._deliver(plan, self._shown(edits), changes)
        self._mark(plan)
        graph = rules.net(changes, existing)
        outcome = BatchOutcome(clock, plan.until, graph, edits, queued, delivered.reached, letters)
        self._book.close(plan, outcome)
        return BatchDone(counts, delivered.entries, len(letters))

    def _records(self, name: str, plan: FanoutPlan, state: FanoutState, looks: Looks) -> Iterator[LogRecord]:
        positions = state.positions.get(name, {})
        for partition, until in sorted(plan.until.get(name, {}).items()):
            look = looks[name]
            start = self._start(name, partition, look.spans[partition], state.positions)
            first = cursors.at_index(look.spans[partition], start)
            if positions.get(partition) == until:
                continue
            try:
                wanted = self._source.range(name, look, partition, first, until)
            except InvalidCursor as error:
                raise Unavailable(f"the batch reads {name!r} up to {until}: {error.detail}") from error
            wanted = replace(wanted, skip_expired=self._options.lost == "skip")
            try:
                for batch in read_range(wanted):
                    columns = (batch.records[column].to_pylist() for column in ("offset", "timestamp", "value"))
                    for offset, published_ms, value in zip(*columns, strict=True):
                        yield LogRecord(partition, Position(batch.timeline, offset), published_ms, value)
            except InvalidCursor as error:
                raise _expired(error.detail) from error

    def _write_authors(self, plan: FanoutPlan, edits: Sequence[PostEdit]) -> None:
        """Add posts to the feeds of their authors, which are created with their first post."""
        self._book.check_open(plan.number)
        apply_to_authors(self._store, [edit.operation([self._options.recent_of(edit.author)]) for edit in edits])
        failpoints.hit("fanout.authors")

    def _shown(self, edits: Sequence[PostEdit]) -> list[PostEdit]:
        """Leave out posts that were deleted before: followers who came since have no tombstones of them."""
        hidden = hidden_posts(self._store, self._place, edits)
        return [edit for edit in edits if edit.deleted or (edit.author, edit.entry.id) not in hidden]

    def _deliver(
        self, plan: FanoutPlan, edits: Sequence[PostEdit], edges: Sequence[FollowEdge]
    ) -> tuple[list[PostEdit], Delivered]:
        """Deliver posts, chunks and histories; posts of large authors are returned for the queue."""
        sizes = self._book.sizes(edit.author for edit in edits)
        large = {author for author, size in sizes.items() if size > self._options.threshold}
        queued = [edit for edit in edits if edit.author in large]
        changes = rules.by_author(edges)
        by_author: dict[str, list[PostEdit]] = {}
        for edit in edits:
            if edit.author not in large:
                by_author.setdefault(edit.author, []).append(edit)
        posts = [
            AuthorPosts(author, sizes.get(author, 0), tuple(own), changes.get(author, {}))
            for author, own in by_author.items()
        ]
        left = {edge.author for edge in edges if not edge.follows}
        whole = DeliveryTask(
            self._place,
            plan.number,
            tuple(one for one in posts if one.weight),
            tuple(self._chunks(edits)),
            tuple(edges),
            self._gone(edits, left),
            self._book.waiting_posts(left) if left else {},
            bool(left) and self._book.is_rebuilding(),
        )
        entries = 0
        reached: dict[int, str | None] = {}
        for result in self._runner.run(divided(whole, self._runner.parallel)):
            if isinstance(result, StrandlineError):
                raise result
            entries += result.entries
            reached |= result.reached
        return queued, Delivered(entries, reached)

    def _gone(self, edits: Sequence[PostEdit], authors: set[str]) -> dict[str, tuple[int, ...]]:
        """The deletions of this batch and those that wait in the queue, of authors who lose followers."""
        found = self._book.waiting_deletions(authors) if authors else {}
        for edit in edits:
            if edit.deleted and edit.author in authors:
                found[edit.author] = (*found.get(edit.author, ()), edit.entry.id)
        return found

    def _chunks(self, edits: Sequence[PostEdit]) -> list[QueuedPost]:
        """The chunks of this batch. A post that the batch deletes is not delivered any more."""
        gone = {(edit.author, edit.entry.id) for edit in edits if edit.deleted}
        return [
            chunk
            for chunk in self._book.chunks(self._runner.parallel)
            if chunk.edit.deleted or (chunk.edit.author, chunk.edit.entry.id) not in gone
        ]

    def _mark(self, plan: FanoutPlan) -> None:
        """Tell the store how far it is, so that a store that was restored from a snapshot is noticed."""
        self._book.check_open(plan.number)
        for name, ends in plan.until.items():
            self._store.save_positions(marked(name), ends)
        failpoints.hit("fanout.marked")

    def behind(self) -> list[str]:
        """The event types whose fanned-out posts the store has lost, because it was restored or emptied."""
        return [
            name
            for name, ends in self._book.state().positions.items()
            if any(
                (found := known.get(partition)) is None or found < end
                for known in (self._store.positions(marked(name)),)
                for partition, end in ends.items()
            )
        ]


def marked(event_type: str) -> str:
    """The name of a fan-out's positions in the store of the feeds."""
    return f"fanout {event_type}"


def _expired(what: str) -> Gap:
    return Gap(
        f"{what}, but records after that have expired; run with --fanout-lost skip to go on with the oldest "
        "record, then run the job `rebuild`, which restores the posts that are in the archive"
    )
