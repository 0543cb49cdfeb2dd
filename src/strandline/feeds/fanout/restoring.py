"""The tasks of a rebuild: collect the posts of authors, write their feeds, and write home feeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.errors import Invalid, StrandlineError
from strandline.feeds.fanout import rules
from strandline.feeds.fanout.book import FanoutBook
from strandline.feeds.fanout.delivery import FanoutPlace, apply_all, apply_to_authors, parts, recent_entries
from strandline.feeds.fanout.rules import AuthorEntries
from strandline.feeds.model import DeleteEntry, MergeEntries, Operation, SetFeed, UnmergeEntries
from strandline.feeds.storage.port import FeedStore
from strandline.log.ranges import PartitionRange, read_range

_AUTHORS_AT_ONCE = 200
_USERS_AT_ONCE = 50


class PostSource(Protocol):
    """A part of all posts, as a value that another process can read."""

    def values(self) -> Iterator[bytes | None]: ...


@dataclass(frozen=True)
class LoggedPosts:
    """Posts that are in the log."""

    part: PartitionRange

    def values(self) -> Iterator[bytes | None]:
        for batch in read_range(self.part):
            yield from batch.records["value"].to_pylist()


@dataclass(frozen=True)
class AuthorRestore:
    """How the feeds of all authors are restored. No author is left out, because any user may follow them next.

    Posts are merged into the feeds, which keep their entries: a follow or unfollow may need them meanwhile.
    """

    place: FanoutPlace
    time: int
    now_ms: int

    def collect(self, source: PostSource) -> dict[str, AuthorEntries]:
        """The newest posts of each author in a source, and their deletions. Bad records are left out."""
        found: dict[str, AuthorEntries] = {}
        cap = self.place.settings.cap
        for value in source.values():
            try:
                edit = rules.post(value, self.place.options, self.time)
            except Invalid:
                continue  # the fan-out has set it aside
            own = found.setdefault(edit.author, AuthorEntries())
            own.add(edit)
            if len(own.posts) + len(own.deleted) > 4 * cap:
                found[edit.author] = own.trim(cap)
        return {author: own.trim(cap) for author, own in found.items()}

    def unite(self, one: AuthorEntries, other: AuthorEntries) -> AuthorEntries:
        return one.merge(other).trim(self.place.settings.cap)

    def write(self, collected: Iterable[tuple[str, AuthorEntries]]) -> int:
        """Write the feeds of authors; returns their number."""
        store, book = self.place.open()
        every = [*collected]
        for some in parts(every, _AUTHORS_AT_ONCE):
            operations = [operation for author, own in some for operation in self._operations(author, own)]
            apply_all(store, [one for one in operations if isinstance(one, SetFeed)])
            apply_to_authors(store, [one for one in operations if not isinstance(one, SetFeed)])
            book.posted([author for author, _ in some], self.now_ms)
        return len(every)

    def _operations(self, author: str, own: AuthorEntries) -> Iterator[Operation]:
        feed = self.place.options.recent_of(author)
        yield SetFeed(0, feed, ())
        yield MergeEntries(self.time, feed, own.entries(self.place.settings.cap))
        for entry_id in sorted(own.deleted):
            yield DeleteEntry(self.time, entry_id, (feed,))


@dataclass(frozen=True)
class HomeTask:
    """Sets the home feeds of some users, with one epoch. Without `filled` they become empty."""

    place: FanoutPlace
    time: int
    users: tuple[str, ...]
    filled: bool

    def run(self) -> int:
        store, book = self.place.open()
        for some in parts(self.users, _USERS_AT_ONCE):
            if self.filled:
                self._fill(store, book, some)
            else:
                apply_all(store, [SetFeed(self.time, self.place.options.home_of(user), ()) for user in some])
        return len(self.users)

    def _fill(self, store: FeedStore, book: FanoutBook, users: Sequence[str]) -> None:
        home_of = self.place.options.home_of
        before = book.authors_of(users)
        recent = recent_entries(store, self.place, {author for author, _ in before})
        # The entries of an author who was unfollowed meanwhile may be newer than the unfollow.
        followed = before & book.authors_of(users)
        content = {}
        for user in users:
            lists = [recent[author] for author, follower in followed if follower == user]
            content[user] = rules.united(lists, self.place.settings.cap)
        apply_all(store, [SetFeed(self.time, home_of(user), entries) for user, entries in content.items()])
        # An unfollow that was fanned out since then has not seen the content.
        unmerges = []
        for author, user in followed - book.authors_of(users):
            ids = {entry.id for entry in recent[author]} & {entry.id for entry in content[user]}
            unmerges.append(UnmergeEntries(self.time, home_of(user), tuple(sorted(ids))))
        apply_all(store, unmerges)


class RestoreRunner(ABC):
    """Runs the tasks of a rebuild. A task may run twice."""

    parallel = 1

    @abstractmethod
    def restore(self, how: AuthorRestore, sources: Sequence[PostSource]) -> int:
        """Restore the feeds of authors from all sources; returns their number. Raises the first error."""

    @abstractmethod
    def set_homes(self, tasks: Sequence[HomeTask]) -> list[int | StrandlineError]:
        """The number of home feeds that each task has set, or its error."""


class RestoreHere(RestoreRunner):
    """Does everything in this process."""

    def restore(self, how: AuthorRestore, sources: Sequence[PostSource]) -> int:
        found: dict[str, AuthorEntries] = {}
        for source in sources:
            for author, own in how.collect(source).items():
                found[author] = how.unite(found[author], own) if author in found else own
        return how.write(found.items())

    def set_homes(self, tasks: Sequence[HomeTask]) -> list[int | StrandlineError]:
        return [task.run() for task in tasks]
