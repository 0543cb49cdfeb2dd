"""Request bodies: read within limits, decompressed, decoded."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import zstandard
from starlette.requests import Request

from strandline.errors import Invalid, Malformed, StrandlineError, TooLarge

_CHUNK = 1 << 20


class UnsupportedEncoding(StrandlineError):
    """The body's Content-Encoding is not one of identity, gzip, zstd."""

    code = "unsupported_media_type"
    status = 415


async def read(request: Request, limit: int) -> bytes:
    """The whole body, decompressed; TooLarge as soon as it is clear that it is."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return _decompress(b"".join(parts), request.headers.get("content-encoding", "identity"), limit)


def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    match encoding.strip().lower():
        case "identity" | "":
            return body
        case "gzip" | "x-gzip":
            return _gunzip(body, limit)
        case "zstd":
            return _unzstd(body, limit)
    raise UnsupportedEncoding(f"Content-Encoding {encoding!r} is not supported; use gzip, zstd or none")


def _gunzip(body: bytes, limit: int) -> bytes:
    unpacked = b""
    rest = body
    try:
        while rest:  # a gzip body may have several members
            stream = zlib.decompressobj(wbits=31)
            unpacked += stream.decompress(rest, limit + 1 - len(unpacked))
            if len(unpacked) > limit:
                raise _too_large(limit)
            if not stream.eof:
                raise Malformed("the gzip body is cut off")
            rest = stream.unused_data
    except zlib.error as error:
        raise Malformed(f"the body is not gzip: {error}") from None
    return unpacked


def _unzstd(body: bytes, limit: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as reader:
            unpacked = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise Malformed(f"the body is not zstd: {error}") from None
    if len(unpacked) > limit:
        raise _too_large(limit)
    return unpacked


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes; send less at once")


def decode(body: bytes, kind: Any) -> Any:
    """The JSON body as a value: Malformed if it is not JSON, Invalid if it is not of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the body is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None


def decode_query(values: dict[str, str], kind: Any) -> Any:
    """Query parameters as a value."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"a query parameter is not valid: {error}") from None
