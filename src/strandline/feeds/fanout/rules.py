"""What the fan-out decides: what records mean, operation times, net changes, entries. Pure functions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from strandline.errors import Invalid
from strandline.feeds import rules, times, wire
from strandline.feeds.fanout.values import FanoutOptions, FollowEdge, PostEdit
from strandline.feeds.model import MAX_TIME, Entry
from strandline.log.cursors import Position
from strandline.log.event_json import UNDECODED


class LogRecord(NamedTuple):
    """A record as the fan-out reads it."""

    partition: int
    cursor: Position
    published_ms: int
    value: bytes | None


class _Follow(msgspec.Struct):
    author: str
    follower: str
    action: Literal["follow", "unfollow"]


_decode_follow = msgspec.json.Decoder(_Follow).decode
_decode_text = msgspec.json.Decoder(str).decode
_NO_METADATA = (b"", b"null")


@lru_cache(maxsize=8)
def _post_decoder(metadata: str) -> Callable[[bytes], Any]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("author", str),
        ("id", int | str),
        ("deleted", bool, False),
        ("content", msgspec.Raw, msgspec.Raw()),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("_Post", fields, rename={"content": metadata})).decode


def post(value: bytes | None, options: FanoutOptions, time: int) -> PostEdit:
    """The post of an event, or its deletion. Invalid, with the reason, if the event is neither."""
    found = _decoded(_post_decoder(options.metadata), value)
    check_user(found.author, options)
    entry = Entry(_id(found.id), None if found.deleted else _metadata(bytes(found.content), options.metadata))
    return PostEdit(time, found.author, rules.entry(entry), found.deleted)


def edge(value: bytes | None, options: FanoutOptions, time: int) -> FollowEdge:
    """The follow or unfollow of an event. Invalid, with the reason, if the event is neither."""
    found = _decoded(_decode_follow, value)
    check_user(found.author, options)
    check_user(found.follower, options)
    return FollowEdge(time, found.author, found.follower, found.action == "follow")


def _decoded(decode: Callable[[bytes], Any], value: bytes | None) -> Any:
    if value is None:
        raise Invalid("the record has no value")
    try:
        return decode(value)
    except UNDECODED as error:
        raise Invalid(str(error)) from None


def check_user(name: str, options: FanoutOptions) -> None:
    """Both feeds of a user need a valid name, which no feed of another user has."""
    if not name:
        raise Invalid("the name of a user is empty")
    for prefix in (options.home, options.recent):
        rules.name(prefix + name)
    shorter, longer = sorted((options.home, options.recent), key=len)
    if (shorter + name).startswith(longer):
        raise Invalid(f"the feed {shorter + name!r:.80} of the user {name!r:.80} is a feed of another user, too")


def _id(given: int | str) -> int:
    try:
        number = wire.number(given)
    except Invalid:
        raise Invalid(f"the id {given!r:.80} is not a number") from None
    return rules.entry_id(number)


def _metadata(raw: bytes, field: str) -> bytes | None:
    """A text is base64, as in the HTTP API. Any other value becomes its JSON."""
    if raw in _NO_METADATA:
        return None
    if not raw.startswith(b'"'):
        return raw
    try:
        return base64.b64decode(_decode_text(raw), validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(f"the field {field!r} is a text that is not base64") from None


def stamps(clock: int, opened_ms: int, records: Iterable[LogRecord]) -> Iterator[tuple[int, LogRecord]]:
    """Each record with its operation time: the time of its publication, but later than all times before.

    That is the end of the millisecond, so that a feed that was set earlier in it gets what was published.
    """
    for record in records:
        published = times.last_of_ms(max(0, min(record.published_ms, opened_ms)))
        clock = min(max(published, clock + 1), MAX_TIME)
        yield clock, record


def settled(edits: Sequence[PostEdit]) -> list[PostEdit]:
    """Leave out posts that the same edits delete, so that no post is delivered after its deletion."""
    gone = {(one.author, one.entry.id) for one in edits if one.deleted}
    return [one for one in edits if one.deleted or (one.author, one.entry.id) not in gone]


def last_changes(edges: Iterable[FollowEdge], existing: set[tuple[str, str]]) -> list[FollowEdge]:
    """The last change of each pair of (author, follower) that changes feeds.

    A follow does, also a repeated one: the feed may be newer than the edge. An unfollow without a follow does not.
    """
    last = {(one.author, one.follower): one for one in edges}
    return [one for pair, one in last.items() if one.follows or pair in existing]


def net(changes: Iterable[FollowEdge], existing: set[tuple[str, str]]) -> list[FollowEdge]:
    """The last changes that add an edge to the graph or remove one."""
    return [one for one in changes if one.follows != ((one.author, one.follower) in existing)]


def by_author(edges: Iterable[FollowEdge]) -> dict[str, dict[str, bool]]:
    """For each author the followers that are new (True) or have left (False)."""
    found: dict[str, dict[str, bool]] = {}
    for one in edges:
        found.setdefault(one.author, {})[one.follower] = one.follows
    return found


def changed(followers: Iterable[str], changes: Mapping[str, bool]) -> list[str]:
    """The followers after changes."""
    if not changes:
        return [*followers]
    kept = [name for name in followers if changes.get(name, True)]
    known = set(kept)
    return kept + [name for name, follows in changes.items() if follows and name not in known]


class AuthorEntries(msgspec.Struct):
    """The newest ids of an author, of records in any order; deleted ids count, and never come back."""

    posts: dict[int, bytes | None] = {}
    deleted: set[int] = set()

    def add(self, edit: PostEdit) -> None:
        entry = edit.entry
        if edit.deleted:
            self.deleted.add(entry.id)
        else:
            self._put(entry.id, entry.metadata)

    def merge(self, other: AuthorEntries) -> AuthorEntries:
        for entry_id, metadata in other.posts.items():
            self._put(entry_id, metadata)
        self.deleted |= other.deleted
        return self

    def _put(self, entry_id: int, metadata: bytes | None) -> None:
        """Of two metadata the greater wins, as in a feed."""
        known = self.posts.get(entry_id)
        if entry_id not in self.posts or (metadata is not None and (known is None or metadata > known)):
            self.posts[entry_id] = metadata

    def trim(self, cap: int) -> AuthorEntries:
        """Keep the newest ids only. This changes no later answer."""
        newest = sorted(self.posts.keys() | self.deleted, reverse=True)[:cap]
        kept = {entry_id: self.posts[entry_id] for entry_id in newest if entry_id in self.posts}
        return AuthorEntries(kept, self.deleted & {*newest})

    def entries(self, cap: int) -> tuple[Entry, ...]:
        """Newest first, without the deleted ones."""
        kept = self.trim(cap)
        return tuple(
            Entry(entry_id, kept.posts[entry_id])
            for entry_id in sorted(kept.posts, reverse=True)
            if entry_id not in kept.deleted
        )


def united(lists: Iterable[Iterable[Entry]], cap: int) -> tuple[Entry, ...]:
    """The newest entries of several feeds, newest first."""
    found: dict[int, Entry] = {}
    for entry in (entry for entries in lists for entry in entries):
        known = found.get(entry.id)
        if known is None or _rank(entry) > _rank(known):
            found[entry.id] = entry
    return tuple(found[entry_id] for entry_id in sorted(found, reverse=True)[:cap])


def _rank(entry: Entry) -> tuple[bool, bytes]:
    """No metadata are less than empty ones."""
    return entry.metadata is not None, entry.metadata or b""
