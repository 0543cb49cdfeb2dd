"""Bad input at every route is refused with a problem that says why. It is never a 500 and changes no data."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import zstandard

from requests_as_is import MAX_BODY, assert_problem, send
from services import Server
from strandline.server import app

DEEP = b"[" * 10_000 + b"]" * 10_000
ENDPOINTS = app.endpoints()
WITH_BODY = [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]
NAMED = [endpoint for endpoint in ENDPOINTS if "{name}" in endpoint.path]
PUBLISH = "POST /event-types/{name}/events"
#: Valid bodies: only the name in the path is unknown.
FINE: dict[tuple[str, str], Any] = {
    ("PUT", "/event-types/{name}"): {"name": "nobody"},
    ("POST", "/event-types/{name}/schemas"): {"schema": "{}"},
    ("POST", "/event-types/{name}/timelines"): {"storage_id": "default"},
    ("PUT", "/event-types/{name}/partition-count"): {"partition_count": 1},
}


def path_of(endpoint: Any, name: str = "plain") -> str:
    path: str = endpoint.path
    for part, text in {"name": name, "partition": "0", "version": "latest", "hour": "2026-11-15T12"}.items():
        path = path.replace(f"{{{part}}}", text)
    return path


def pattern(path: str) -> re.Pattern[str]:
    """What matches all paths of a route. A seqNr is a number, other parameters can be any text."""
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", path.replace("{seq_nr}", r"(\d+|\{seq_nr\})")))


def named(endpoint: Any) -> str:
    return f"{endpoint.method} {endpoint.path}"


def chunks(size: int) -> Iterator[bytes]:
    for _ in range(size // 50_000):
        yield b" " * 50_000


BAD_BODIES = [
    # what, body, Content-Encoding, status, word
    ("nothing", b"", "", 400, "truncated"),
    ("broken", b'{"name": x}', "", 400, "JSON"),
    ("cut off", b'[{"partition": "0"', "", 400, "truncated"),
    ("text after it", b"[] []", "", 400, "JSON"),
    ("nested too deeply", DEEP, "", 400, "recursion"),
    ("not UTF-8", b'["\xff"]', "", 400, "utf-8"),
    ("with a byte order mark", b"\xef\xbb\xbf[]", "", 400, "JSON"),
    ("not a number", b"[NaN]", "", 400, "JSON"),
    ("too large", b" " * (MAX_BODY + 1), "", 413, str(MAX_BODY)),
    ("too large in chunks", lambda: chunks(2 * MAX_BODY), "", 413, str(MAX_BODY)),
    ("too large once unpacked (gzip)", gzip.compress(b" " * 100_000_000), "gzip", 413, str(MAX_BODY)),
    ("too large once unpacked (zstd)", zstandard.compress(b" " * 100_000_000), "zstd", 413, str(MAX_BODY)),
    ("gzip cut off", gzip.compress(b"[]")[:-5], "gzip", 400, "gzip"),
    ("gzip with more behind it", gzip.compress(b"[]") + b"more", "gzip", 400, "gzip"),
    ("not gzip", b"[]", "gzip", 400, "gzip"),
    ("zstd cut off", zstandard.compress(b"[]")[:6], "zstd", 400, "truncated"),
    ("not zstd", b"[]", "zstd", 400, "zstd"),
    ("zstd that wants too much memory", b"\x28\xb5\x2f\xfd\x00\xa0" + b"\x01\x00\x00", "zstd", 400, "zstd"),
    ("brotli", b"[]", "br", 415, "br"),
    ("packed twice", gzip.compress(gzip.compress(b"[]")), "gzip, gzip", 415, "gzip"),
]


@pytest.mark.parametrize(("body", "encoding", "status", "word"), [
    pytest.param(*case[1:], id=case[0]) for case in BAD_BODIES
])  # fmt: skip
@pytest.mark.parametrize("endpoint", WITH_BODY, ids=named)
def test_bodies_that_cannot_be_read(
    target: Server, endpoint: Any, body: Any, encoding: str, status: int, word: str
):
    """Every route with a body refuses one that is broken, too large or in an unknown encoding."""
    headers = {"Content-Encoding": encoding} if encoding else {}
    sent = body() if callable(body) else body
    answer = send(target, endpoint.method, path_of(endpoint), sent, headers)
    if endpoint.body_optional and not sent:  # then the name in the path is what is wrong
        assert_problem(answer, 422)
    elif named(endpoint) == PUBLISH and answer.status == 422:
        # The body is an array; the error is in one of its events.
        assert [item["publishing_status"] for item in answer.json] == ["failed"]
    else:
        assert_problem(answer, status, word)


@pytest.mark.parametrize("body", ["null", "7", '"text"', "true", "[null]", "[[]]", "[1.5]"])
@pytest.mark.parametrize("endpoint", WITH_BODY, ids=named)
def test_bodies_of_another_type(target: Server, endpoint: Any, body: str):
    """JSON of the wrong type is refused. A publish reports the result of every event."""
    answer = send(target, endpoint.method, path_of(endpoint), body.encode())
    if named(endpoint) == PUBLISH:
        if body.startswith("["):
            assert answer.status == 422
            assert answer.json == [
                {"publishing_status": "failed", "step": "validating", "detail": "an event must be a JSON object"}
            ]
        else:
            assert_problem(answer, 400, "array")
    else:
        assert_problem(answer, 422, "expected")


STRICT = [endpoint for endpoint in WITH_BODY if endpoint.room != "log"]


@pytest.mark.parametrize("endpoint", STRICT, ids=named)
def test_unknown_fields_are_refused(target: Server, endpoint: Any):
    """The rooms besides the log refuse a field that they do not know: it may be misspelt."""
    assert_problem(send(target, endpoint.method, path_of(endpoint), {"colour": "red"}), 422, "colour")


@pytest.mark.parametrize("endpoint", [e for e in ENDPOINTS if e.room not in {"log", None}], ids=named)
def test_unknown_query_parameters_are_refused(target: Server, endpoint: Any):
    """Also on routes that have none."""
    body = {} if endpoint.body is not None else None
    assert_problem(send(target, endpoint.method, path_of(endpoint) + "?colour=red", body), 422, "colour")


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "..",
        "%2e%2e",
        "a%2Fb",
        "%2Fetc%2Fpasswd",
        "%00",
        "a%20b",
        "a%0Ab",
        quote("ü☃𝄞"),
        "n" * 300,
    ],
)
@pytest.mark.parametrize("endpoint", NAMED, ids=named)
def test_names_that_nothing_has(target: Server, endpoint: Any, name: str):
    """An unknown name is 404, with any characters."""
    body = FINE.get((endpoint.method, endpoint.path), []) if endpoint.body is not None else None
    problem = assert_problem(send(target, endpoint.method, path_of(endpoint, name), body), 404)
    assert problem["code"] == "not_found"


@pytest.mark.parametrize("endpoint", NAMED, ids=named)
def test_names_that_are_not_utf_8(target: Server, endpoint: Any):
    """Bytes that are not UTF-8 are no name: different bytes would become the same name."""
    body = FINE.get((endpoint.method, endpoint.path), []) if endpoint.body is not None else None
    problem = assert_problem(send(target, endpoint.method, path_of(endpoint, "%ff"), body), 400, "UTF-8")
    assert problem["code"] == "malformed"


@pytest.mark.parametrize("path", sorted({endpoint.path for endpoint in ENDPOINTS}))
def test_methods_that_a_route_does_not_have(target: Server, path: str):
    """A method that a path does not support is 405, and `Allow` lists those that its route supports."""
    endpoint = next(endpoint for endpoint in ENDPOINTS if endpoint.path == path)
    declared = {other.method for other in ENDPOINTS if other.path == path}
    allowed = declared | ({"HEAD"} if "GET" in declared else set())
    # `/feeds/get` is also the feed `get`.
    served = {other.method for other in ENDPOINTS if pattern(other.path).fullmatch(path_of(endpoint))}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE"} - allowed - served:
        answer = send(target, method, path_of(endpoint))
        assert_problem(answer, 405, method)
        assert {*answer.headers["allow"].split(", ")} == allowed


@pytest.mark.parametrize(
    "path", ["/nothing", "//event-types", "/event-types/plain/nothing", "/event-types//plain", "/*"]
)
def test_routes_that_do_not_exist(target: Server, path: str):
    """An unknown route is 404, and the detail refers to /openapi.json."""
    assert_problem(send(target, "GET", path), 404, "/openapi.json")


def test_a_request_head_that_is_too_large(target: Server):
    """Headers or a query above the size limit are 431."""
    assert_problem(send(target, "GET", "/health", headers={"X-Long": "x" * 70_000}), 431, "65536")
    assert_problem(send(target, "GET", "/event-types?owning_application=" + "x" * 65_500), 431, "65536")
