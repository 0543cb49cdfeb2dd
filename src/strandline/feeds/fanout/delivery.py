"""Delivers posts to followers, as tasks that another process can run.

A task reads the follow graph and the feeds of authors, then makes sure that its batch is still open, and then
writes. So a process that was paused and replaced writes what belonged to its batch, or nothing. All of its writes
are idempotent, with the operation times of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from strandline import failpoints
from strandline.clock import system_clock
from strandline.engine.connect import Databases
from strandline.engine.task_runner import TaskStores
from strandline.feeds.fanout import rules
from strandline.feeds.fanout.book import FanoutBook
from strandline.feeds.fanout.values import FanoutOptions, FollowEdge, PostEdit, QueuedPost
from strandline.feeds.model import Entry, MergeEntries, Operation, SetFeed, UnmergeEntries, feeds_of
from strandline.feeds.settings import FeedSettings
from strandline.feeds.storage.connect import FILE, connect
from strandline.feeds.storage.port import FeedStore

_T = TypeVar("_T")

# How many followers are read and written together: more need memory, fewer need more round trips.
_AT_ONCE = 10_000
_EDGES_AT_ONCE = 200
_NEWEST = 20


@dataclass(frozen=True)
class AuthorPosts:
    """The posts of an author in a batch, whose followers change with the batch."""

    author: str
    followers: int
    edits: tuple[PostEdit, ...]
    changes: Mapping[str, bool]

    @property
    def weight(self) -> int:
        return (self.followers + len(self.changes)) * len(self.edits)


@dataclass(frozen=True)
class Delivered:
    """The feeds that were written to, and the last follower of each chunk; None if no follower is left."""

    entries: int = 0
    reached: Mapping[int, str | None] = field(default_factory=dict)


class FanoutStores(NamedTuple):
    store: FeedStore
    book: FanoutBook

    def close(self) -> None:
        """The owner of the database closes the book."""
        self.store.close()


def _connect(settings: FeedSettings, databases: Databases) -> FanoutStores:
    store = connect(settings, databases, system_clock())
    return FanoutStores(store, FanoutBook(databases.get(settings.database_url, FILE)))


#: The stores of the tasks, by settings.
STORES = TaskStores(_connect)


@dataclass(frozen=True)
class FanoutPlace:
    """Where the feeds and the tables are, as a value."""

    settings: FeedSettings
    data: str
    options: FanoutOptions

    def open(self) -> FanoutStores:
        return STORES.get(self.settings, self.data)


@dataclass(frozen=True)
class DeliveryTask:
    """A part of the work of one batch."""

    place: FanoutPlace
    batch: int
    posts: tuple[AuthorPosts, ...] = ()
    chunks: tuple[QueuedPost, ...] = ()
    edges: tuple[FollowEdge, ...] = ()
    #: Ids by author that are deleted, but perhaps not in all home feeds yet.
    gone: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: Ids by author of posts in the queue, with the last follower that each has reached.
    queued: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict)
    #: Home feeds may get more entries from a rebuild, with times before this batch.
    rebuilds: bool = False

    def run(self) -> Delivered:
        """Conflict if the batch was closed by another process. Any error: run it again."""
        store, book = self.place.open()
        entries = 0
        reached: dict[int, str | None] = {}
        for group in _light(self.posts):
            entries += self._write(
                store, book, self._appends(book.followers_of(one.author for one in group), group)
            )
        for chunk in self.chunks:
            names = book.followers_after(chunk.edit.author, chunk.after, self.place.options.chunk)
            reached[chunk.number] = names[-1] if len(names) == self.place.options.chunk else None
            entries += self._write(store, book, self._to_homes(chunk.edit, names))
        for some in parts(self.edges, _EDGES_AT_ONCE):
            entries += self._write(store, book, self._histories(store, some))
        return Delivered(entries, reached)

    def _write(self, store: FeedStore, book: FanoutBook, operations: Iterable[Operation]) -> int:
        ready = [*operations]
        book.check_open(self.batch)
        accepted = apply_all(store, ready)
        failpoints.hit("fanout.delivered")
        return accepted

    def _appends(
        self, followers: Mapping[str, Sequence[str]], group: Sequence[AuthorPosts]
    ) -> Iterator[Operation]:
        for one in group:
            names = rules.changed(followers.get(one.author, ()), one.changes)
            for edit in one.edits:
                yield from self._to_homes(edit, names)

    def _to_homes(self, edit: PostEdit, names: Sequence[str]) -> Iterator[Operation]:
        for some in parts(names, _AT_ONCE):
            yield edit.operation([*map(self.place.options.home_of, some)])

    def _histories(self, store: FeedStore, edges: Sequence[FollowEdge]) -> Iterator[Operation]:
        """A merge for each follow, an unmerge for each unfollow, of the author's recent entries.

        An unmerge has the ids that the home feed shows: others would take places under the cap.
        """
        home_of = self.place.options.home_of
        recent = recent_entries(store, self.place, {one.author for one in edges})
        homes = {home_of(one.follower) for one in edges if not one.follows}
        shown = _entries_of(store, homes, self.place.settings.cap)
        for one in edges:
            entries, home = recent[one.author], home_of(one.follower)
            if not one.follows:
                if ids := self._taken(one, entries, shown[home]):
                    yield UnmergeEntries(one.time, home, ids)
            elif entries:
                yield MergeEntries(one.time, home, entries)

    def _taken(self, edge: FollowEdge, entries: Sequence[Entry], shown: Sequence[Entry]) -> tuple[int, ...]:
        """The ids that an unfollow takes out of a home feed. Deletions do not reach it any more, so they count."""
        ids = {*(entry.id for entry in entries), *self.gone.get(edge.author, ())}
        if not self.rebuilds:
            ids &= {entry.id for entry in shown}
        # A late chunk of the queue may still bring these, with a time before the unfollow.
        ids |= {one for one, reached in self.queued.get(edge.author, ()) if reached < edge.follower}
        return tuple(sorted(ids))


def recent_entries(store: FeedStore, place: FanoutPlace, authors: Iterable[str]) -> dict[str, tuple[Entry, ...]]:
    """The recent entries of authors; empty for authors who never posted. Raises if a part of the store fails."""
    feeds = {place.options.recent_of(author): author for author in authors}
    return {feeds[feed]: entries for feed, entries in _entries_of(store, feeds, place.settings.cap).items()}


def _entries_of(store: FeedStore, feeds: Iterable[str], cap: int) -> dict[str, tuple[Entry, ...]]:
    """All entries of feeds; none if a feed does not exist. Raises if a part of the store fails."""
    found: dict[str, tuple[Entry, ...]] = {}
    for some in parts(sorted({*feeds}), _EDGES_AT_ONCE):
        for answer in store.read(some, 0, cap):
            if answer.error is not None:
                raise answer.error
            found[answer.name] = answer.entries
    return found


def hidden_posts(store: FeedStore, place: FanoutPlace, edits: Iterable[PostEdit]) -> set[tuple[str, int]]:
    """Authors and ids of posts that the feeds of their authors do not show, although these feeds exist.

    They were deleted before, or have too low ids. Raises if a part of the store fails.
    """
    hidden: dict[str, set[int]] = {}
    for edit in edits:
        if not edit.deleted:
            hidden.setdefault(edit.author, set()).add(edit.entry.id)
    for length in (_NEWEST, place.settings.cap):  # most posts are among the newest
        for some in parts(sorted(hidden), _EDGES_AT_ONCE):
            for name, answer in zip(
                some, store.read([*map(place.options.recent_of, some)], 0, length), strict=True
            ):
                if answer.error is not None:
                    raise answer.error
                hidden[name] -= {entry.id for entry in answer.entries}
                if answer.status == "miss":
                    hidden[name].clear()
        hidden = {name: ids for name, ids in hidden.items() if ids}
    return {(name, entry_id) for name, ids in hidden.items() for entry_id in ids}


def apply_all(store: FeedStore, operations: Sequence[Operation]) -> int:
    """Apply operations; returns the number of feeds that they have reached. Raises if a feed has failed."""
    return sum(count for some in _small(operations) for count in _reached(store, some))


def apply_to_authors(store: FeedStore, operations: Sequence[Operation]) -> None:
    """Apply operations, each on the feed of one author. A feed that does not exist is created.

    It gets the earliest epoch, so that a feed that a rebuild restores at the same time keeps everything. A feed
    that somebody has dropped needs an epoch after the drop.
    """
    missing = _refused(store, operations)
    for dropped in (False, True):
        firsts = {feeds_of(one)[0]: one.time for one in reversed(missing)}
        apply_all(store, [SetFeed(time if dropped else 0, feed, ()) for feed, time in firsts.items()])
        missing = _refused(store, missing)


def _refused(store: FeedStore, operations: Sequence[Operation]) -> list[Operation]:
    """Apply operations, and return those whose feed does not exist."""
    return [
        one
        for some in _small(operations)
        for one, count in zip(some, _reached(store, some), strict=True)
        if not count
    ]


def _reached(store: FeedStore, operations: Sequence[Operation]) -> Iterator[int]:
    """How many feeds each operation has reached. Raises if a feed has failed."""
    for applied in store.apply(operations):
        for error in applied.failed.values():
            raise error
        yield applied.accepted


def _small(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Operations that are written together."""
    group: list[Operation] = []
    size = 0
    for operation in operations:
        if group and size >= _AT_ONCE:
            yield group
            group, size = [], 0
        group.append(operation)
        size += len(feeds_of(operation))
    if group:
        yield group


def _light(posts: Sequence[AuthorPosts]) -> Iterator[list[AuthorPosts]]:
    """Authors whose followers are read together."""
    group: list[AuthorPosts] = []
    size = 0
    for one in posts:
        if group and size + one.followers > _AT_ONCE:
            yield group
            group, size = [], 0
        group.append(one)
        size += one.followers
    if group:
        yield group


def parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def divided(whole: DeliveryTask, count: int) -> list[DeliveryTask]:
    """The work of a batch as at most `count` tasks of about the same size."""
    shares: list[list[AuthorPosts]] = [[] for _ in range(count)]
    loads = [0] * count
    for one in sorted(whole.posts, key=lambda one: -one.weight):
        lightest = loads.index(min(loads))
        shares[lightest].append(one)
        loads[lightest] += one.weight + 1
    ordered = sorted(whole.edges, key=lambda one: (one.author, one.follower))
    each = -(-len(ordered) // count) or 1
    tasks = [
        replace(
            whole,
            posts=tuple(share),
            chunks=whole.chunks[n::count],
            edges=tuple(ordered[n * each : (n + 1) * each]),
        )
        for n, share in enumerate(shares)
    ]
    return [task for task in tasks if task.posts or task.chunks or task.edges]
