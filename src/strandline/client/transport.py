"""HTTP with our errors: the only module of the SDK that sends requests. Push sessions are in `schedule_feed`.

A request that was not sent because the connection was refused is retried a few times. A repeatable request whose
response was lost is sent once more, others are not. A write whose response was lost raises `OutcomeUnknown`.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec

from strandline.client import problems
from strandline.errors import Invalid, OutcomeUnknown, StrandlineError, Unavailable

Params = Mapping[str, str | int | Sequence[str]]

_CONNECT_S = 5.0
_REFUSED_PAUSES_S = (0.1, 0.3)
_LIMITS = httpx.Limits(max_connections=200, max_keepalive_connections=20, keepalive_expiry=5)
_KNOWN_URLS = 256
_FAILED = 300
_PROBLEM = "application/problem+json"
_T = TypeVar("_T")


class Transport:
    """A pool of connections to one server. Thread-safe; every wait has a timeout."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            shown = url.rpartition("@")[2]  # a password for a proxy may precede the host
            raise Invalid(f"{shown!r} is not the URL of a server; use one like http://127.0.0.1:8080")
        #: For messages, without such a password.
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self.timeout = timeout
        # Most servers are near, where compression costs more time than it saves.
        plain = {"Accept-Encoding": "identity"}
        limits = httpx.Timeout(**self._limits())
        self._wire = httpx.HTTPTransport(limits=_LIMITS, proxy=_proxy(parts))
        self._client = httpx.Client(base_url=url, timeout=limits, headers=plain, transport=self._wire)
        self._base = url.rstrip("/")
        self._headers = self._common_headers()

    def _limits(self, wait_s: float = 0.0) -> dict[str, float]:
        longest = self.timeout + wait_s
        return {"connect": min(self.timeout, _CONNECT_S), "read": longest, "write": longest, "pool": longest}

    def _common_headers(self) -> dict[str, str]:
        """What the client sends with every request."""
        request = self._client.build_request("GET", "/")
        if request.url.userinfo:
            request = next(httpx.BasicAuth(request.url.username, request.url.password).auth_flow(request))
        return dict(request.headers)

    def address(self, path: str, params: Params) -> httpx.URL:
        return httpx.URL(self._base + path, params=params)

    def get(self, path: str, kind: type[_T], params: Params | None = None, wait_s: float = 0.0) -> _T:
        """`wait_s`: how long the request asks the server to wait, on top of the timeout."""
        response = self.repeatable("GET", path, writes=False, params=params, wait_s=wait_s)
        return msgspec.json.decode(response.content, type=kind)

    def pages(self, path: str, kind: type[_T], params: Params) -> Iterator[_T]:
        """The items of all pages. The first page is requested at once: its errors are raised here."""
        return self._items(self.get(path, dict[str, Any], params), kind)

    def _items(self, page: dict[str, Any], kind: type[_T]) -> Iterator[_T]:
        while True:
            yield from (msgspec.convert(item, kind) for item in page["items"])
            if "next" not in page["_links"]:
                return
            link = urlsplit(page["_links"]["next"]["href"])
            page = self.get(link.path, dict[str, Any], dict(parse_qsl(link.query)))

    def ask(self, path: str, question: Sequence[Any], kind: type[_T]) -> _T:
        """A read with parameters that are too long for a URL: a POST that changes nothing."""
        response = self.repeatable("POST", path, writes=False, body=msgspec.json.encode(list(question)))
        return msgspec.json.decode(response.content, type=kind)

    def change(self, method: str, path: str, kind: type[_T], body: Any = None) -> _T:
        response = self.write(method, path, b"" if body is None else msgspec.json.encode(body))
        check(response, writes=True)
        return msgspec.json.decode(response.content, type=kind)

    def write(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        flow_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """A request that changes something. The caller checks the status of the response."""
        flow = {"X-Flow-Id": flow_id} if flow_id else {}
        request = self._request(method, _url(self._base + path), body, {**flow, **(headers or {})})
        with self._mapped(writes=True):
            return self._send(request)

    def repeatable(
        self,
        method: str,
        path: str,
        *,
        writes: bool,
        params: Params | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        answers: Container[int] = (),
    ) -> httpx.Response:
        """An idempotent request: it may be sent twice. `answers`: as for `check`.

        `writes`: whether it changes something. Then OutcomeUnknown is raised if a response was lost and the
        repetition was not executed.
        """
        url = self.address(path, params) if params else _url(self._base + path)
        request = self._request(method, url, body, headers or {}, wait_s)

        def send() -> httpx.Response:
            with self._mapped(writes=writes):
                response = self._send(request)
            check(response, writes=writes, answers=answers)
            return response

        try:
            return send()
        except (Unavailable, OutcomeUnknown) as error:
            # The pool may return a connection that the server is closing.
            if not isinstance(error.__cause__, httpx.ReadError | httpx.RemoteProtocolError):
                raise
            lost: StrandlineError = error
        try:
            return send()
        except Unavailable as error:
            if not writes:
                raise
            raise lost from error

    def _request(
        self, method: str, url: httpx.URL, body: bytes, headers: Mapping[str, str], wait_s: float = 0.0
    ) -> httpx.Request:
        typed = {"content-type": "application/json"} if body else {}
        given = {name.lower(): value for name, value in headers.items()}
        limits = {"timeout": self._limits(wait_s)}
        sent = {**self._headers, **typed, **given}
        return httpx.Request(method, url, headers=sent, content=body or None, extensions=limits)

    def _send(self, request: httpx.Request) -> httpx.Response:
        for pause in _REFUSED_PAUSES_S:
            try:
                return self._send_once(request)
            except httpx.ConnectError:
                time.sleep(pause)
        return self._send_once(request)

    def _send_once(self, request: httpx.Request) -> httpx.Response:
        """Without what the client adds for redirects, cookies and logins: that takes a third of a request."""
        self.check_open()  # a transport opens connections also after it was closed
        response = self._wire.handle_request(request)
        try:
            response.read()
        except BaseException:
            response.close()
            raise
        return response

    @contextmanager
    def stream(self, path: str, params: Params, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """A response whose body is read as it arrives. Raises Unavailable if the connection breaks."""
        opening = self._client.stream("GET", path, params=params, headers=headers)
        with self._mapped(writes=False), opening as response:
            if response.status_code >= _FAILED:
                response.read()
            check(response, writes=False)
            yield response

    @contextmanager
    def _mapped(self, *, writes: bool) -> Iterator[None]:
        self.check_open()
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unavailable(
                f"no server answers at {self.url} ({error}); start one with `strandline serve --data DIR --port N`"
            ) from error
        except httpx.PoolTimeout as error:
            raise Unavailable(f"all connections to {self.url} are in use; retry later") from error
        except httpx.TransportError as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if writes:
                raise OutcomeUnknown(
                    f"the response of {self.url} was lost ({why}); it may be done: check before you retry"
                ) from error
            raise Unavailable(f"the connection to {self.url} broke ({why})") from error

    def check_open(self) -> None:
        """Unavailable after `close`."""
        if self._client.is_closed:
            raise Unavailable(f"the client of {self.url} is closed; connect again")

    def close(self) -> None:
        self._client.close()


# Reading a URL takes a tenth of a request.
_url = lru_cache(_KNOWN_URLS)(httpx.URL)


def _proxy(server: SplitResult) -> str | None:
    """The proxy that the environment names for this server."""
    found = getproxies()
    host = f"{server.hostname}:{server.port}" if server.port else server.hostname or ""
    proxy = None if proxy_bypass(host) else found.get(server.scheme) or found.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def was_not_sent(error: StrandlineError) -> bool:
    """Whether the request that failed with this error never left the client."""
    return isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def check(response: httpx.Response, *, writes: bool, answers: Container[int] = ()) -> None:
    """Raise the error that the response reports, if any.

    A response with one of the statuses in `answers` is only an error if it is a problem document.
    """
    is_problem = response.headers.get("content-type", "").startswith(_PROBLEM)
    if response.status_code >= _FAILED and (is_problem or response.status_code not in answers):
        raise problems.to_error(response.status_code, response.headers, response.content, writes=writes)
