"""Which requests reach the routes, by their `Host`, `Origin` and `Sec-Fetch-Site`."""

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
    """The status of the refusal; None if the request reaches its route. The second time decides as the first."""
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
    """In every spelling, with any port: a proxy or a container may forward another one."""
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
    """A page that rebinds its name to this machine is asked for under that name. The answer names the setting."""
    guard = Guard("127.0.0.1", "")
    assert status(guard, ("host", host)) == 421
    refused = guard.refusal(scope(("host", host)))
    assert refused is not None
    problem = json.loads(refused.body)
    assert problem["code"] == "misdirected"
    assert "server.hosts" in problem["detail"]


@pytest.mark.parametrize("hosts", [[], [("host", "")], [OWN, OWN], [OWN, ("host", "rebind.evil")]])
def test_a_request_has_one_host(hosts):
    """Of two, a proxy and a node might choose differently."""
    assert status(Guard("127.0.0.1", ""), *hosts) == 400


def test_the_setting_adds_names():
    """In any case, with or without the brackets of an address; the loopback names stay."""
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
    """They would never match, so they are refused when the node starts."""
    with pytest.raises(Invalid, match=r"server\.hosts"):
        Guard("127.0.0.1", hosts)


def test_the_address_of_the_node_is_accepted():
    """It is how clients reach the node, unless it stands for all addresses."""
    assert status(Guard("10.1.2.3", ""), ("host", "10.1.2.3:8080")) is None
    assert status(Guard("::5", ""), ("host", "[0::5]:8080")) is None
    assert status(Guard("node.example", ""), ("host", "node.example:8080")) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0::0"])  # noqa: S104 - nothing listens
def test_all_addresses_are_no_name(host, caplog):
    """The operator must name the hosts; a warning says so, once."""
    guard = Guard(host, "")
    assert status(guard, ("host", "0.0.0.0:8080")) == 421
    assert status(guard, ("host", "localhost:8080")) is None
    assert sum("server.hosts" in line for line in caplog.messages) == 1
    caplog.clear()
    Guard(host, "events.example")
    assert caplog.messages == []


def test_any_host_can_be_accepted():
    """Behind a proxy that checks it; pages of other origins are still refused."""
    guard = Guard("127.0.0.1", "*")
    assert status(guard, ("host", "whatever.example")) is None
    assert status(guard, ("host", "whatever.example"), ("origin", "http://other.example")) == 403
    assert status(guard) == 400


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_may_name_any_host(path):
    """Load balancers send an address, or with HTTP/1.0 nothing; these routes show no data."""
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
    """Another port is another origin; a sandboxed page and a local file have none."""
    assert status(Guard("127.0.0.1", ""), OWN, ("origin", origin), method=method) == 403


@pytest.mark.parametrize("origin", ["http://localhost:8080", "https://localhost:8080", "http://LOCALHOST:8080"])
def test_its_own_pages_may_use_the_node(origin):
    """Also behind a proxy that adds TLS and keeps the host."""
    headers = (OWN, ("origin", origin), ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors"))
    assert status(Guard("127.0.0.1", ""), *headers, method="POST") is None


def test_two_origins_are_both_checked():
    """One good one does not hide the other."""
    headers = (OWN, ("origin", "http://localhost:8080"), ("origin", "http://evil.example"))
    assert status(Guard("127.0.0.1", ""), *headers) == 403


@pytest.mark.parametrize(("site", "expected"), [("none", None), ("same-origin", None)])
def test_a_user_who_types_the_address_is_served(site, expected):
    """And so are the requests of the node's own pages."""
    assert status(Guard("127.0.0.1", ""), OWN, ("sec-fetch-site", site)) == expected


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", ""])
@pytest.mark.parametrize("path", ["/", "/event-types", "/health"])
def test_requests_of_other_sites_are_refused(site, path):
    """A picture or a script has no origin; a page on another port of this machine is of the same site."""
    assert status(Guard("127.0.0.1", ""), OWN, ("sec-fetch-site", site), path=path) == 403


def test_a_link_to_the_start_page_works():
    """From a page of any site, in a window. In a frame, to another route or by a form it does not."""
    guard = Guard("127.0.0.1", "")
    link = (OWN, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"))
    window, frame = ("sec-fetch-dest", "document"), ("sec-fetch-dest", "iframe")
    assert status(guard, *link, window, path="/") is None
    assert status(guard, *link, frame, path="/") == 403
    assert status(guard, *link, window, path="/event-types") == 403
    assert status(guard, *link, window, path="/", method="POST") == 403


def test_a_refusal_is_logged(caplog):
    """With what was asked for, and without line breaks of the path."""
    Guard("127.0.0.1", "").refusal(scope(("host", "rebind.evil"), path="/a\nb"))
    assert caplog.messages == ["refused GET /a%0Ab"]


def test_what_is_remembered_is_bounded():
    """However many ports clients name."""
    guard = Guard("127.0.0.1", "")
    for port in range(1000):
        assert status(guard, ("host", f"localhost:{port}")) is None
    assert len(guard._accepted) < 100
