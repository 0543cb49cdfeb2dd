"""The header of an action, in kafka-journal's encoding, and records that hold actions.

The header `journal.action` is a JSON object with one member that is named after the action. What kafka-journal
does not know is inside that action's member `strandline`, which its decoder ignores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from strandline.errors import InvalidCursor, Malformed
from strandline.journal import nesting
from strandline.journal.model import MAX_ID, Action, Append, Delete, ExpireAfter, LoggedAction, Mark, Purge, SeqNr
from strandline.log import cursors
from strandline.log.cursors import Position

HEADER = "journal.action"


class _Extra(msgspec.Struct, omit_defaults=True, gc=False):
    """What only Strandline knows of an action."""

    id: str | None = None
    expected: int | None = None
    since: str | None = None
    expire_after: ExpireAfter | None = None
    if_cursor: str | None = None


_NO_EXTRA = _Extra()
_ABSENT = msgspec.Raw()
_EMPTY = {b"", b"{}", b"null"}


class _Metadata(msgspec.Struct, gc=False):
    data: msgspec.Raw = _ABSENT


class _Known(msgspec.Struct, omit_defaults=True, gc=False):
    origin: str | None = None
    version: str | None = None
    strandline: _Extra | None = None


class _Range(msgspec.Struct, gc=False, rename={"first": "from", "last": "to"}):
    first: SeqNr
    last: SeqNr


class _Append(_Known, kw_only=True, gc=False, rename={"payload_type": "payloadType"}):
    range: _Range
    payload_type: Literal["json", "binary"]
    metadata: msgspec.Raw = _ABSENT  # kafka-journal takes what is no object for an empty one


class _Mark(_Known, kw_only=True):
    id: str


class _Delete(_Known, kw_only=True):
    to: SeqNr


class _AppendOnly(msgspec.Struct, gc=False):
    append: _Append


_MEMBERS: dict[str, type[_Known]] = {"append": _Append, "mark": _Mark, "delete": _Delete, "purge": _Known}
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in _MEMBERS.items()}
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_split = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Almost all headers begin like this. Decoding them in one step takes a third of the time.
_APPEND = b'{"append":{'
_decode_append = msgspec.json.Decoder(_AppendOnly).decode
_encode = msgspec.json.Encoder().encode


def encode(action: Action, origin: str | None = None) -> bytes:
    """The value of the header. Members are in the order in which kafka-journal writes them."""
    who = {} if origin is None else {"origin": origin}
    extra = _encoded_extra(action)
    own = {} if extra is None else {"strandline": extra}
    if isinstance(action, Append):
        numbers = {"from": action.first, "to": action.last}
        body = {"range": numbers, **who, "payloadType": action.payload_type, "metadata": {}, **own}
        return _encode({"append": body})
    if isinstance(action, Mark):
        return _encode({"mark": {"id": action.id, **who}})
    if isinstance(action, Delete):
        return _encode({"delete": {"to": action.to, **who, **own}})
    return _encode({"purge": {**who, **own}})


def _encoded_extra(action: Action) -> _Extra | None:
    extra = _NO_EXTRA
    if isinstance(action, Append):
        extra = _Extra(action.id, action.expected, _text(action.since), action.expire_after_ms)
    elif isinstance(action, Delete):
        extra = _Extra(since=_text(action.since))
    elif isinstance(action, Purge):
        extra = _Extra(if_cursor=_text(action.if_cursor))
    return None if extra == _NO_EXTRA else extra


def _text(cursor: Position | None) -> str | None:
    return None if cursor is None else str(cursor)


class Decoded(NamedTuple):
    """A decoded header. `metadata` is the JSON text that a JVM writer gave for the events of an append."""

    action: Action
    origin: str | None = None
    version: str | None = None
    metadata: bytes | None = None


def decode(header: bytes) -> Decoded | None:
    """The action and what belongs to it; None if kafka-journal does not know the action either."""
    try:
        if header.startswith(_APPEND):
            return _decoded("append", nesting.decoded(_decode_append, header).append)
        members = nesting.decoded(_split.decode, header)
        for name, decoder in _decoders.items():
            member = members.get(name)
            if member is not None and bytes(member).lstrip()[:1] == b"{":
                return _decoded(name, decoder.decode(member))
    except (msgspec.MsgspecError, InvalidCursor, ValueError) as error:
        raise Malformed(f"the header {HEADER} cannot be decoded: {error}") from None
    return None


def _decoded(name: str, body: Any) -> Decoded:
    metadata = _metadata(bytes(body.metadata)) if name == "append" else None
    return Decoded(_action(name, body, body.strandline or _NO_EXTRA), body.origin, body.version, metadata)


def _metadata(text: bytes) -> bytes | None:
    """The member `data`. kafka-journal reads an append without it, whatever the metadata are."""
    if text in _EMPTY:  # our own
        return None
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        text.decode()  # the decoder does not look into the strings of raw values
        data = bytes(_decode_metadata(text).data)
        return None if data in {b"", b"null"} else data
    return None


def _action(name: str, body: Any, extra: _Extra) -> Action:
    if name == "append":
        if body.range.last < body.range.first:
            raise ValueError(f"the range {body.range.first} to {body.range.last} is empty")
        return Append(
            body.range.first,
            body.range.last,
            body.payload_type,
            extra.id,
            extra.expected,
            _position(extra.since),
            extra.expire_after,
        )
    if name == "mark":
        return Mark(body.id)
    if name == "delete":
        return Delete(body.to, _position(extra.since))
    return Purge(_position(extra.if_cursor))


def _position(text: str | None) -> Position | None:
    return None if text is None else cursors.parse(text)


def from_record(
    cursor: Position,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Mapping[str, Any]] | None,
    *,
    with_value: bool = True,
) -> LoggedAction | None:
    """The action of a record; `headers` are as Arrow has them.

    None if the record is to be skipped: it has no key, no header or an unknown action, or it is an append without
    a value. Malformed if it is to be set aside.
    """
    found = next((header["value"] for header in headers or () if header["key"] == HEADER), None)
    others: tuple[tuple[str, bytes], ...] = ()
    if with_value and len(headers or ()) > 1:
        others = tuple((h["key"], h["value"]) for h in headers or () if h["key"] != HEADER)
    return from_header(cursor, timestamp_ms, key, value, found, others, with_value=with_value)


def from_header(
    cursor: Position,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    header: bytes | None,
    others: tuple[tuple[str, bytes], ...] = (),
    *,
    with_value: bool = True,
) -> LoggedAction | None:
    """As `from_record`, with the value of the header, and the other headers."""
    if key is None or header is None:
        return None
    decoded = decode(header)
    if decoded is None:
        return None
    action, origin, version, metadata = decoded
    if not isinstance(action, Append):
        return LoggedAction(_entity(key), cursor, timestamp_ms, action, None, origin, version)
    if value is None:
        return None
    kept = (value, origin, version, others, metadata) if with_value else (None, origin, version)
    return LoggedAction(_entity(key), cursor, timestamp_ms, action, *kept)


def _entity(key: bytes) -> str:
    try:
        entity = key.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"the key is not UTF-8: {error}") from None
    if not 1 <= len(entity) <= MAX_ID:  # nobody can ask for it, and a database may have no place for it
        raise Malformed(f"the key has {len(entity)} characters; the id of a journal has 1 to {MAX_ID}")
    return entity
