"""Tests of the guard: it refuses requests by their `Host`, `Origin` and `Sec-Fetch-Site` headers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.errors import Invalid
from strandline.server.guard import Guard

OWN = ("host", "localhost:8080")


def scope(*headers: tuple[str, str], path: str = "/event-types", method: str = "GET") -> dict[str, Any]:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": "http", "method": method, "path": path, "headers": pairs}


def status(guard: Guard, *headers: tuple[str, str], **request: str) -> int | None:
    """The status of the refusal; None if the request reaches its route. The same for a repeated request."""
    asked = scope(*headers, **request)
    first, second = (found and found.status_code for found in (guard.refusal(asked), guard.refusal(asked)))
    assert first == second
    return first


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST:1", "localhost.", "localhost.:8080", "localhost:"),
        *("127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]:8080"),
    ],
)
def test_loopback_names_are_accepted(host):
    """Every spelling of a loopback name is accepted, with any port: a container may forward another one."""
    assert status(Guard("127.0.0.1", ""), ("host", host)) is None


@pytest.mark.parametrize(
    "host",
    [
        *("rebind.evil", "rebind.evil:8080", "localhost.evil", "evil.localhost", "127.0.0.1.evil", "notlocalhost"),
        *("10.1.2.3", "127.0.0.2", "[::2]:8080", "::1", "[::1", "[::1]8080", "localhost:80:80", "localhost:port"),
        *(
            "user@localhost",
            "localhost/",
            "localhost evil",
            " ",
            "..",
            "localhost..",
            "2130706433",
            "\xe9",
            "0.0.0.0",  # noqa: S104 - nothing listens
        ),
    ],
)
def test_other_hosts_are_refused(host):
    """Other hosts are answered 421. The detail names the setting that can add them."""
    guard = Guard("127.0.0.1", "")
    assert status(guard, ("host", host)) == 421
    refused = guard.refusal(scope(("host", host)))
    assert refused is not None
    problem = json.loads(refused.body)
    assert problem["code"] == "misdirected"
    assert "server.hosts" in problem["detail"]


@pytest.mark.parametrize("hosts", [[], [("host", "")], [OWN, OWN], [OWN, ("host", "rebind.evil")]])
def test_a_request_has_one_host(hosts):
    """A request without a host, or with two of them, is answered 400."""
    assert status(Guard("127.0.0.1", ""), *hosts) == 400


def test_the_setting_adds_names():
    """Names of the setting are accepted in any spelling, and loopback names are still accepted."""
    guard = Guard("127.0.0.1", " Events.Example , 10.1.2.3,[fe80::0:1],fe80::2,")
    for host in (
        "events.example",
        "EVENTS.example.:443",
        "10.1.2.3:8080",
        "[fe80::1]",
        "[FE80::2]:1",
        "localhost",
    ):
        assert status(guard, ("host", host)) is None, host
    assert status(guard, ("host", "www.events.example")) == 421


@pytest.mark.parametrize("hosts", ["events.example:8080", "http://events.example", "*.example", "a b", "::x"])
def test_names_that_cannot_be_hosts(hosts):
    """A setting that could never match is refused when the node starts."""
    with pytest.raises(Invalid, match=r"server\.hosts"):
        Guard("127.0.0.1", hosts)


def test_the_address_of_the_node_is_accepted():
    """The address that the node listens on is accepted as a host."""
    assert status(Guard("10.1.2.3", ""), ("host", "10.1.2.3:8080")) is None
    assert status(Guard("::5", ""), ("host", "[0::5]:8080")) is None
    assert status(Guard("node.example", ""), ("host", "node.example:8080")) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0::0"])  # noqa: S104 - nothing listens
def test_all_addresses_are_no_name(host, caplog):
    """An address that stands for all addresses is not accepted as a host. A warning names the setting."""
    guard = Guard(host, "")
    assert status(guard, ("host", "0.0.0.0:8080")) == 421
    assert status(guard, ("host", "localhost:8080")) is None
    assert sum("server.hosts" in line for line in caplog.messages) == 1
    caplog.clear()
    Guard(host, "events.example")
    assert caplog.messages == []


def test_any_host_can_be_accepted():
    """With `*` every host is accepted, but pages of other origins are still refused."""
    guard = Guard("127.0.0.1", "*")
    assert status(guard, ("host", "whatever.example")) is None
    assert status(guard, ("host", "whatever.example"), ("origin", "http://other.example")) == 403
    assert status(guard) == 400


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_may_name_any_host(path):
    """The routes for load balancers accept any host, and none."""
    guard = Guard("127.0.0.1", "")
    for headers in ([("host", "10.1.2.3:8080")], [("host", "")], []):
        assert status(guard, *headers, path=path) is None


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "https://localhost:8080.evil.example", "null", "", "localhost:8080"),
        *("http://localhost:8081", "http://localhost", "http://127.0.0.1:8080", "file://"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_origins_are_refused(origin, method):
    """A request of another origin is refused. Another port is another origin."""
    assert status(Guard("127.0.0.1", ""), OWN, ("origin", origin), method=method) == 403


@pytest.mark.parametrize("origin", ["http://localhost:8080", "https://localhost:8080", "http://LOCALHOST:8080"])
def test_its_own_pages_may_use_the_node(origin):
    """A request of the node's own origin is accepted, also behind a proxy that adds TLS."""
    headers = (OWN, ("origin", origin), ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors"))
    assert status(Guard("127.0.0.1", ""), *headers, method="POST") is None


def test_two_origins_are_both_checked():
    """A foreign origin is refused even if the own one is there as well."""
    headers = (OWN, ("origin", "http://localhost:8080"), ("origin", "http://evil.example"))
    assert status(Guard("127.0.0.1", ""), *headers) == 403


@pytest.mark.parametrize(("site", "expected"), [("none", None), ("same-origin", None)])
def test_a_user_who_types_the_address_is_served(site, expected):
    """A request that the user or a page of the node started is accepted."""
    assert status(Guard("127.0.0.1", ""), OWN, ("sec-fetch-site", site)) == expected


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", ""])
@pytest.mark.parametrize("path", ["/", "/event-types", "/health"])
def test_requests_of_other_sites_are_refused(site, path):
    """Requests of other sites, and of other ports of this machine (`same-site`), are refused."""
    assert status(Guard("127.0.0.1", ""), OWN, ("sec-fetch-site", site), path=path) == 403


def test_a_link_to_the_start_page_works():
    """A link of any site opens the start page in a window, but no frame, no other route, and no form."""
    guard = Guard("127.0.0.1", "")
    link = (OWN, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"))
    window, frame = ("sec-fetch-dest", "document"), ("sec-fetch-dest", "iframe")
    assert status(guard, *link, window, path="/") is None
    assert status(guard, *link, frame, path="/") == 403
    assert status(guard, *link, window, path="/event-types") == 403
    assert status(guard, *link, window, path="/", method="POST") == 403


def test_a_refusal_is_logged(caplog):
    """A refusal is logged with the method and the quoted path."""
    Guard("127.0.0.1", "").refusal(scope(("host", "rebind.evil"), path="/a\nb"))
    assert caplog.messages == ["refused GET /a%0Ab"]


def test_what_is_remembered_is_bounded():
    """The number of remembered hosts is limited."""
    guard = Guard("127.0.0.1", "")
    for port in range(1000):
        assert status(guard, ("host", f"localhost:{port}")) is None
    assert len(guard._accepted) < 100
