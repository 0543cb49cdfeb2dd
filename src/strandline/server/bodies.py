"""Request bodies: read within limits, decompressed, decoded."""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import msgspec
import zstandard
from msgspec.inspect import FloatType, IntType, StrType, StructType, Type, UnionType, type_info
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from strandline.errors import Incomplete, Invalid, Malformed, TooLarge, Unavailable, Unsupported
from strandline.server.byte_budget import Holding

_CHUNK = 1 << 20
# How long the rest of a refused body may stall before the answer is sent.
_LINGER_S = 1.0
# The largest zstd window that RFC 9659 allows over HTTP. It limits the memory that a frame makes us allocate.
_ZSTD_WINDOW = 8 << 20


#: The media type of MessagePack.
MSGPACK = "application/msgpack"
_is_integer = re.compile(r"-?[0-9]+", re.ASCII).fullmatch
#: Decodes a body as a type.
Decode = Callable[[bytes, Any], Any]


class _Packed(Protocol):
    def read(self, size: int, /) -> bytes: ...


async def receive(
    incoming: Receive, headers: Mapping[bytes, bytes], limit: int, patience: float, held: Holding
) -> bytes:
    """The whole body as it was sent; its bytes are held.

    Raises TooLarge as soon as the body exceeds the limit, Unavailable if the bodies of all requests exceed theirs,
    and Incomplete if no data arrives for `patience` seconds.
    """
    given = headers.get(b"content-length", b"")
    length = int(given) if given.isdigit() else None
    body = _Body(incoming, limit, length, held)
    try:
        await body.read(patience)
    except (TooLarge, Unavailable):
        if b"expect" not in headers:  # such a client waits for an answer before it sends the body
            await body.discard()
        raise
    return b"".join(body.parts)


class _Body:
    """A body while it arrives."""

    def __init__(self, incoming: Receive, limit: int, length: int | None, held: Holding) -> None:
        self._incoming = incoming
        self._limit = limit
        self._length = length
        self._held = held
        self._complete = False
        self.parts: list[bytes] = []
        self.size = 0

    async def read(self, patience: float) -> None:
        if self._length is not None and self._length > self._limit:
            raise _too_large(self._limit)
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(patience) as timer:
                while True:
                    part = await self._next()
                    if self.size > self._limit:
                        raise _too_large(self._limit)
                    self._held.add(len(part))
                    self.parts.append(part)
                    if self._complete:
                        return
                    timer.reschedule(now() + patience)
        except TimeoutError:
            raise Incomplete(
                f"no more data of the body arrived for {patience:g} s, after {self.size} bytes"
            ) from None

    async def discard(self) -> None:
        """Read and drop the rest, within limits: many clients read no answer before they have sent everything."""
        self.parts.clear()
        most = self.size + self._limit
        now = asyncio.get_running_loop().time
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_LINGER_S) as timer:
                while not self._complete and self.size <= most:
                    await self._next()
                    timer.reschedule(now() + _LINGER_S)

    async def _next(self) -> bytes:
        message = await self._incoming()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        self.size += len(part)
        # The message after the last byte is empty, and waiting for it would cost two thread switches.
        self._complete = not message.get("more_body", False) or self.size == self._length
        return part


def check_type(content_type: str, *, msgpack: bool) -> Decode:
    """The decoder for a media type. Unsupported unless it is JSON or, if that is allowed, MessagePack.

    No form of a web page can send either of them.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return decode
    if msgpack and kind == MSGPACK:
        return _decode_msgpack
    named = f"has the Content-Type {content_type[:200]!r}" if content_type else "has no Content-Type"
    raise Unsupported(f"the body {named}; send it as application/json{f' or {MSGPACK}' if msgpack else ''}")


def unpack(body: bytes, encoding: str, limit: int, held: Holding) -> bytes:
    """The decompressed body; its bytes are held. Raises TooLarge before more than `limit` bytes are in memory."""
    match encoding.strip().lower():
        case "identity" | "":
            return body
        case "gzip" | "x-gzip":
            packed: _Packed = gzip.GzipFile(fileobj=io.BytesIO(body))
        case "zstd":
            frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
            packed = frames.stream_reader(body, read_across_frames=True)
        case _:
            raise Unsupported(f"Content-Encoding {encoding!r} is not supported; use gzip, zstd or none")
    try:
        return _read(packed, limit, held)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise Malformed(f"the body is not valid {encoding}: {error}") from None


def _read(packed: _Packed, limit: int, held: Holding) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := packed.read(_CHUNK):
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        held.add(len(part))
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes; split it into smaller requests")


def decode(body: bytes, kind: Any, what: str = "body") -> Any:
    """The JSON body as a value. Raises Malformed if it is not JSON, Invalid if it does not match `kind`."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            with suppress(msgspec.ValidationError):  # of a number that no type has room for
                msgspec.json.decode(body)  # raises DecodeError if the rest is not JSON
            raise Invalid(f"the {what} is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Malformed(f"the {what} is not JSON: {error}") from None


def _decode_msgpack(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Malformed(f"the body is not MessagePack: {error}") from None


def refuse_unknown(values: Mapping[str, Any], kind: Any) -> None:
    """Raise Invalid if a query parameter is not a field of `kind`; None has no fields."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)} if kind is not None else set()
    if unknown := values.keys() - known:
        has = f"this route has {', '.join(sorted(known))}" if known else "this route has none"
        raise Invalid(f"there is no query parameter {min(unknown)!r}; {has}")


def decode_query(values: dict[str, Any], kind: Any) -> Any:
    """Query parameters as a value. An integer is digits; msgspec also takes `1e1` and `1.0`, and rounds them."""
    for name in values.keys() & _integers(kind):
        if not _is_integer(values[name]):
            raise Invalid(f"a query parameter is not valid: {name} must be an integer, not {values[name]!r:.80}")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"a query parameter is not valid: {error}") from None


@cache
def _integers(kind: Any) -> frozenset[str]:
    """The query parameters that are integers."""
    found = type_info(kind)
    fields = found.fields if isinstance(found, StructType) else ()
    return frozenset(field.encode_name for field in fields if _is_integer_type(field.type))


def _is_integer_type(kind: Type) -> bool:
    """Also an integer that may be left out."""
    parts = kind.types if isinstance(kind, UnionType) else (kind,)
    return any(isinstance(one, IntType) for one in parts) and not any(
        isinstance(one, StrType | FloatType) for one in parts
    )
