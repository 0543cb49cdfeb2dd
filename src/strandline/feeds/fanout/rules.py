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
    _check_user(found.author, options)
    entry = Entry(_id(found.id), None if found.deleted else _metadata(bytes(found.content), options.metadata))
    return PostEdit(time, found.author, rules.entry(entry), found.deleted)


def edge(value: bytes | None, options: FanoutOptions, time: int) -> FollowEdge:
    """The follow or unfollow of an event. Invalid, with the reason, if the event is neither."""
    found = _decoded(_decode_follow, value)
    _check_user(found.author, options)
    _check_user(found.follower, options)
    return FollowEdge(time, found.author, found.follower, found.action == "follow")


def _decoded(decode: Callable[[bytes], Any], value: bytes | None) -> Any:
    if value is None:
        raise Invalid("the record has no value")
    try:
        return decode(value)
    except UNDECODED as error:
        raise Invalid(str(error)) from None


def _check_user(name: str, options: FanoutOptions) -> None:
    """Both feeds of a user need a valid name."""
    if not name:
        raise Invalid("the name of a user is empty")
    for prefix in (options.home, options.recent):
        rules.name(prefix + name)


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
    """Each record with its operation time: the time of its publication, but later than all times before."""
    for record in records:
        published = times.of_ms(max(0, min(record.published_ms, opened_ms)))
        clock = min(max(published, clock + 1), MAX_TIME)
        yield clock, record


def settled(edits: Sequence[PostEdit]) -> list[PostEdit]:
    """Leave out posts that the same edits delete, so that no post is delivered after its deletion."""
    gone = {(one.author, one.entry.id) for one in edits if one.deleted}
    return [one for one in edits if one.deleted or (one.author, one.entry.id) not in gone]


def net(edges: Iterable[FollowEdge], existing: set[tuple[str, str]]) -> list[FollowEdge]:
    """The last change of each pair of (author, follower), if it adds or removes an edge of the graph."""
    last = {(one.author, one.follower): one for one in edges}
    return [one for pair, one in last.items() if one.follows != (pair in existing)]


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
