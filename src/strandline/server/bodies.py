"""Request bodies: read within limits, decompressed, decoded."""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import zstandard
from starlette.requests import ClientDisconnect, Request

from strandline.errors import Incomplete, Invalid, Malformed, TooLarge, Unsupported

_CHUNK = 1 << 20
# How long the rest of a refused body may stall before the answer is sent.
_LINGER_S = 1.0
# The largest zstd window that RFC 9659 allows over HTTP. It limits the memory that a frame makes us allocate.
_ZSTD_WINDOW = 8 << 20


class _Packed(Protocol):
    def read(self, size: int, /) -> bytes: ...


async def receive(request: Request, limit: int, patience: float) -> bytes:
    """The whole body as it was sent.

    Raises TooLarge as soon as the body exceeds the limit, Incomplete if no data arrives for `patience` seconds.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        await _discard(request, limit)
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(patience) as timer:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    break
                parts.append(part)
                timer.reschedule(now() + patience)
    except TimeoutError:
        raise Incomplete(f"no more data of the body arrived for {patience:g} s, after {size} bytes") from None
    if size > limit:
        await _discard(request, limit)
        raise _too_large(limit)
    return b"".join(parts)


async def _discard(request: Request, most: int) -> None:
    """Read and drop at most `most` bytes: many clients read no answer before they have sent the whole body."""
    if "expect" in request.headers:  # this client waits for an answer before it sends the body
        return
    now = asyncio.get_running_loop().time
    size = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_LINGER_S) as timer:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    return
                timer.reschedule(now() + _LINGER_S)


def check_json(content_type: str) -> None:
    """Raise Unsupported unless the media type is JSON, which no form of a web page can send."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        named = f"has the Content-Type {content_type[:200]!r}" if content_type else "has no Content-Type"
        raise Unsupported(f"the body {named}; send it as application/json")


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """The decompressed body. Raises TooLarge before more than `limit` bytes are kept in memory."""
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
        return _read(packed, limit)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise Malformed(f"the body is not valid {encoding}: {error}") from None


def _read(packed: _Packed, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := packed.read(_CHUNK):
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes; split it into smaller requests")


def decode(body: bytes, kind: Any) -> Any:
    """The JSON body as a value. Raises Malformed if it is not JSON, Invalid if it does not match `kind`."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            msgspec.json.decode(body)  # raises DecodeError if the rest is not JSON
            raise Invalid(f"the body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None


def decode_query(values: dict[str, Any], kind: Any) -> Any:
    """Query parameters as a value."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"a query parameter is not valid: {error}") from None
