"""Compresses answers for clients that accept gzip."""

from __future__ import annotations

import gzip

from starlette.responses import Response
from starlette.types import Scope

from strandline.errors import StrandlineError
from strandline.server.pools import Pool

#: Smaller bodies are sent as they are: they fit into one packet.
LEAST_BYTES = 1_000
# Larger ones would delay other requests on the event loop.
_INLINE_BYTES = 32_768
# Most of the effect at a fraction of the time.
_LEVEL = 2


def accepts_gzip(header: str) -> bool:
    """Whether an `Accept-Encoding` allows gzip. Its own entry counts more than the one for all encodings."""
    weights = {}
    for entry in header.lower().split(","):
        name, _, parameters = entry.partition(";")
        weights[name.strip()] = parameters.replace(" ", "")
    found = weights.get("gzip", weights.get("x-gzip", weights.get("*", "q=0")))
    return found.rstrip("0.") != "q="


async def compressed(response: Response, scope: Scope, pool: Pool) -> Response:
    """The response, compressed if it is large and its client accepts that. Streams stay as they are."""
    body = getattr(response, "body", b"")
    if len(body) < LEAST_BYTES or "content-encoding" in response.headers:
        return response
    varied = Response(status_code=response.status_code)
    # Caches must not give the one form to clients of the other.
    varied.raw_headers = [*response.raw_headers, (b"vary", b"accept-encoding")]
    varied.body = body
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
    if not accepts_gzip(accepted.decode("latin-1")):
        return varied
    try:
        inline = len(body) <= _INLINE_BYTES
        varied.body = _pack(body) if inline else await pool.run(_pack, body)
    except StrandlineError:  # too many other calls wait, and this one is not necessary
        return varied
    varied.headers["content-encoding"] = "gzip"
    varied.headers["content-length"] = str(len(varied.body))
    return varied


def _pack(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)
