"""The values of the fan-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from strandline.config import setting
from strandline.errors import Invalid
from strandline.feeds import rules
from strandline.feeds.model import AppendEntry, DeleteEntry, Entry
from strandline.log.cursors import Position

#: What to do if records have expired before they were read: see `FanoutOptions.lost`.
_ON_LOST = ("stop", "skip")
#: The fields of a post that have a meaning of their own.
_POST_FIELDS = ("author", "id", "deleted")


@dataclass(frozen=True)
class FanoutOptions:
    """What a fan-out does. There is one in a database.

    `home` and `recent` are prefixes: a user's home feed is `home` and the name, the feed of an author's own
    entries is `recent` and the name. A batch has at most `batch` records of each event type. `lost` is for an
    operator: `skip` goes on after unread records have expired.
    """

    posts: str = setting("", "Event type of posts: events with `author`, `id`, and `metadata` or `deleted`.")
    follows: str = setting(
        "", "Event type of follows: events with `follower`, `author` and `action`, `follow` or `unfollow`."
    )
    home: str = setting("home:", "Prefix of the names of home feeds.")
    recent: str = setting("posts:", "Prefix of the names of the feeds with an author's own entries.")
    metadata: str = setting("metadata", "Field of a post that becomes the metadata of its entry.")
    threshold: int = setting(
        50_000, "Authors with more followers are delivered in chunks, beside the others.", minimum=1
    )
    chunk: int = setting(10_000, "Followers of such an author that one task of a batch reaches.", minimum=1)
    batch: int = setting(1_000, "Most records of each event type in a batch.", minimum=1)
    lost: str = setting(
        "stop",
        "If records have expired before they were read: `stop`, or `skip` to go on with the oldest record.",
    )

    def check(self) -> None:
        """Invalid if an option is missing or cannot be used."""
        for name in ("posts", "follows"):
            if not getattr(self, name):
                raise Invalid(f"the fan-out needs the event type of {name}; name it with --fanout-{name}")
        if self.posts == self.follows:
            raise Invalid(
                f"posts and follows of the fan-out are both {self.posts!r}; they need an event type each"
            )
        if self.home == self.recent:
            raise Invalid(f"home and recent of the fan-out are both {self.home!r}; feeds need different names")
        for prefix in (self.home, self.recent):
            rules.name(f"{prefix}x")
        if self.metadata in _POST_FIELDS or not self.metadata.isprintable() or {*self.metadata} & {*'"\\'}:
            raise Invalid(
                f"metadata of the fan-out must name a field other than {', '.join(_POST_FIELDS)}, without quotes "
                f"and backslashes, not {self.metadata!r:.80}"
            )
        for name in ("threshold", "chunk", "batch"):
            if getattr(self, name) < 1:
                raise Invalid(f"{name} of the fan-out must be at least 1, but is {getattr(self, name)}")
        if self.lost not in _ON_LOST:
            raise Invalid(f"lost of the fan-out must be one of {', '.join(_ON_LOST)}, not {self.lost!r}")

    def home_of(self, user: str) -> str:
        return f"{self.home}{user}"

    def recent_of(self, author: str) -> str:
        return f"{self.recent}{author}"


class FanoutRoute(msgspec.Struct, frozen=True):
    """What a database belongs to: the event types, with the ids of their current lives, and the names of feeds."""

    posts: str
    posts_id: str
    follows: str
    follows_id: str
    home: str
    recent: str
    metadata: str


class PostEdit(msgspec.Struct, frozen=True):
    """A post of an author, or with `deleted` the deletion of one."""

    time: int
    author: str
    entry: Entry
    deleted: bool = False

    def operation(self, feeds: Sequence[str]) -> AppendEntry | DeleteEntry:
        if self.deleted:
            return DeleteEntry(self.time, self.entry.id, tuple(feeds))
        return AppendEntry(self.time, self.entry, tuple(feeds))


class FollowEdge(msgspec.Struct, frozen=True):
    """A change of the follow graph; `follows` is False for an unfollow."""

    time: int
    author: str
    follower: str
    follows: bool


class QueuedPost(msgspec.Struct, frozen=True):
    """A post of an author with very many followers, delivered to the followers up to `after` by name."""

    number: int
    edit: PostEdit
    after: str = ""


class FanoutLetter(msgspec.Struct, frozen=True):
    """A record that cannot be fanned out, with the reason. `source` is its event type."""

    source: str
    partition: int
    cursor: Position
    reason: str
    value: bytes | None

    @property
    def place(self) -> str:
        """Where the record is, as a text. Letters are in the order of source, partition and cursor."""
        return f"{self.source}/{self.partition}/{self.cursor}"


#: Positions by event type and partition.
Places: TypeAlias = Mapping[str, Mapping[int, Position]]


class FanoutPlan(msgspec.Struct, frozen=True):
    """A batch that was begun. Every process that continues it reads the same records and uses the same times.

    It reads from the stored positions up to `until`. Operation times are later than `clock`, and records from the
    future count as of `opened_ms`.
    """

    number: int
    clock: int
    opened_ms: int
    until: Places


class FanoutState(msgspec.Struct, frozen=True):
    """How far the fan-out is. `number` is that of the open batch, or of the next one if `plan` is None."""

    number: int
    clock: int
    plan: FanoutPlan | None
    positions: Places


class BatchOutcome(msgspec.Struct, frozen=True):
    """What a batch changes in the tables when its effects are acknowledged.

    `edges` are net changes: each really adds or removes an edge. `queued` is new in the queue. `reached` has the
    last follower that each delivered chunk has reached; None if the post is done.
    """

    clock: int
    until: Places
    edges: Sequence[FollowEdge] = ()
    edits: Sequence[PostEdit] = ()
    queued: Sequence[PostEdit] = ()
    reached: Mapping[int, str | None] = {}
    letters: Sequence[FanoutLetter] = ()
