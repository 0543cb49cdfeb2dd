"""Which clients get compressed answers."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from starlette.responses import Response

from strandline.errors import Unavailable
from strandline.server.compression import accepts_gzip, compressed

LARGE = b"x" * 100_000


class NoThread:
    async def run(self, *_):
        raise Unavailable("too many requests wait")


class OneThread:
    async def run(self, call, *arguments):
        return call(*arguments)


@pytest.mark.parametrize("header", ["gzip", "GZip ;q=1", "br;q=1.0, gzip;q=0.8", "*", "*;q=0.1", "x-gzip"])
def test_accepted(header):
    assert accepts_gzip(header)


@pytest.mark.parametrize(
    "header", ["", "identity", "gzip;q=0", "gzip; q=0.000", "*;q=0", "*, gzip;q=0", "gzipped"]
)
def test_not_accepted(header):
    assert not accepts_gzip(header)


def test_a_large_answer_is_compressed_in_a_thread_if_there_is_one():
    """Without a free thread it is sent as it is. The response that was given is not changed: it may be shared."""
    scope = {"headers": [(b"accept-encoding", b"gzip")]}
    given = Response(LARGE, 201, headers={"Location": "/x"})
    found = asyncio.run(compressed(given, scope, OneThread()))
    assert gzip.decompress(found.body) == LARGE
    assert (found.status_code, found.headers["location"]) == (201, "/x")
    assert found.headers["content-length"] == str(len(found.body))
    assert asyncio.run(compressed(given, scope, NoThread())).body == LARGE
    assert (given.body, "vary" in given.headers) == (LARGE, False)
