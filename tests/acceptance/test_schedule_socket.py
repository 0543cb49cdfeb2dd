"""Push sessions over raw WebSockets: frames, credit, refusals, and clients that stall, vanish or send garbage."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from services import CLIENT, DEADLINE_S, Server, until

MAX_FRAME = 1_000_000
LEASE = {
    *("id", "version", "expires_at_ms", "due_at_ms", "delivery_count", "created_ms", "producer_group", "body")
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("socket") / "data"
    with Server(data, logs_level="warning", server_max_body_bytes=MAX_FRAME) as started:
        yield started
        assert '"level": "error"' not in started.log_file.read_text()


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> str:
    """The URL of a schedule of its own."""
    return new_schedule(server, f"s{abs(hash(request.node.nodeid))}")


def new_schedule(server: Server, name: str, **settings: Any) -> str:
    found = f"{server.url}/schedules/{name}"
    assert CLIENT.put(found, json=settings).status_code == 201
    return found


def post(url: str, path: str, *items: dict[str, Any]) -> list[dict[str, Any]]:
    return CLIENT.post(f"{url}/{path}", json={"items": items}).json()["items"]


def create(url: str, *items: dict[str, Any]) -> list[dict[str, Any]]:
    answers = post(url, "messages", *({"producer_group": "g", "body": 1, **item} for item in items))
    assert all(answer["status"] == "ok" for answer in answers), answers
    return answers


def states(url: str) -> dict[str, int]:
    return CLIENT.get(f"{url}/counts", params={"from": 0, "to": 2**50}).json()


def metric(url: str, name: str) -> float:
    text = CLIENT.get(f"{url.partition('/schedules')[0]}/metrics").text
    return float(text.split(f"\n{name} ")[1].split()[0])


class Session:
    """A WebSocket that keeps the leases which come while it waits for other frames."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._leases: list[dict[str, Any]] = []

    def send(self, **frame: Any) -> None:
        self.connection.send(json.dumps(frame))

    def receive(self, timeout: float = DEADLINE_S) -> dict[str, Any]:
        return json.loads(self.connection.recv(timeout))

    def lease(self) -> dict[str, Any]:
        return self._leases.pop(0) if self._leases else self.receive()["lease"]

    def leases(self, count: int) -> list[dict[str, Any]]:
        return [self.lease() for _ in range(count)]

    def answer(self, kind: str) -> Any:
        """The next frame of that kind."""
        while True:
            ((found, value),) = self.receive().items()
            if found == kind:
                return value
            assert found == "lease", (found, value)
            self._leases.append(value)

    def act(self, kind: str, *items: Any, ref: Any = "r") -> list[dict[str, Any]]:
        self.send(**{kind: {"ref": ref, "items": [*items]}})
        found = self.answer("results")
        assert found["ref"] == ref
        return found["items"]

    @property
    def waiting_leases(self) -> int:
        """How many leases came while it waited for other frames."""
        return len(self._leases)

    def has_no_lease(self) -> bool:
        """Whether a ping is answered before any lease comes."""
        self.send(ping={"client_ms": 1})
        self.answer("pong")
        return not self._leases

    def close_code(self) -> int | None:
        """Read to the end; the code that the server closed with."""
        with suppress(ConnectionClosed):
            while True:
                self.receive()
        return self.connection.close_code


def address(url: str, consumer: str = "c", lease_ms: Any = 60_000, credit: Any = 10) -> str:
    query = urlencode({"consumer": consumer, "lease_ms": lease_ms, "credit": credit})
    return f"{url.replace('http', 'ws', 1)}/subscribe?{query}"


@contextmanager
def subscribed(url: str, consumer: str = "c", lease_ms: int = 60_000, credit: int = 10) -> Iterator[Session]:
    with connect(address(url, consumer, lease_ms, credit), compression=None, max_size=None) as connection:
        yield Session(connection)


# -- leases


def test_due_messages_are_pushed(url):
    """What is due at once, what comes due, and what is created later."""
    start = create(url, {"id": "old", "body": {"a": 1}}, {"id": "soon", "in_ms": 300})
    with subscribed(url) as session:
        first, second = session.leases(2)
        assert (first["id"], second["id"]) == ("old", "soon")
        assert set(first) == LEASE
        assert (first["version"], first["body"], first["delivery_count"]) == (start[0]["version"] + 1, {"a": 1}, 1)
        assert second["due_at_ms"] == start[1]["at_ms"]
        assert second["expires_at_ms"] >= second["due_at_ms"] + 60_000
        post(url, "messages", {"id": "bytes", "producer_group": "g", "body_base64": "AP8="})
        third = session.lease()
        assert (third["id"], third["body_base64"], "body" in third) == ("bytes", "AP8=", False)


def test_a_consumer_extends_releases_and_deletes(url):
    """The results have the reference of the frame, and an answer to every item in its order."""
    create(url, {"id": "a"}, {"id": "b"}, {"id": "c"})
    with subscribed(url) as session:
        held = {lease["id"]: lease for lease in session.leases(3)}
        extended = session.act("extend", {"id": "a", "version": held["a"]["version"], "in_ms": 100_000}, ref=7)[0]
        assert extended["at_ms"] > held["a"]["expires_at_ms"]
        released = session.act("release", {"id": "b", "version": held["b"]["version"], "in_ms": 200}, ref=None)[0]
        answers = session.act(
            "delete",
            {"id": "a", "version": extended["version"]},
            7,
            {"id": "none", "version": 1},
            {"id": "c", "version": 1},
            {"id": "c", "version": held["c"]["version"], "consumer": "c"},
            {"id": "c"},
            {"id": "c", "producer_group": "g", "version": "x"},
        )
        got = [answer.get("code", "ok") for answer in answers]
        assert got == ["ok", "invalid", "not_found", "stale_version", "ok", "invalid", "invalid"]
        again = session.lease()
        assert (again["id"], again["version"]) == ("b", released["version"] + 1)
        assert (again["delivery_count"], again["due_at_ms"]) == (2, released["at_ms"])
        assert states(url)["total"] == 1
    assert "code" not in answers[0]


def test_many_acts_are_answered_each(url):
    """Frames that follow each other quickly share calls, but not answers."""
    create(url, *({"id": f"m{n}"} for n in range(500)))
    with subscribed(url, credit=1000) as session:
        leases = session.leases(500)
        for number, lease in enumerate(leases):
            item = {"id": lease["id"], "version": lease["version"] - number % 2}
            session.send(delete={"ref": number, "items": [item, 7]})
        for number, lease in enumerate(leases):
            found = session.answer("results")
            first, second = found["items"]
            assert (found["ref"], first["id"]) == (number, lease["id"])
            assert first.get("code", "ok") == ("stale_version" if number % 2 else "ok")
            assert second["code"] == "invalid"
    assert states(url)["total"] == 250


def test_every_message_of_a_burst_is_pushed_once(url):
    """Two consumers share it."""
    create(url, *({"id": f"m{n}", "in_ms": 300} for n in range(2000)))
    with subscribed(url, "a", credit=10_000) as one, subscribed(url, "b", credit=10_000) as other:
        found: list[str] = []

        def read(session: Session) -> None:
            with suppress(ConnectionClosed):
                while True:
                    found.append(session.lease()["id"])

        threads = [threading.Thread(target=read, args=[session]) for session in (one, other)]
        for thread in threads:
            thread.start()
        until(lambda: len(found) >= 2000, "all messages")
        one.connection.close()
        other.connection.close()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted(f"m{n}" for n in range(2000))


def test_what_was_asked_before_the_end_is_done(url):
    """A client need not wait for the results."""
    create(url, *({"id": f"m{n}"} for n in range(200)))
    with subscribed(url, credit=200) as session:
        for lease in session.leases(200):
            session.send(delete={"items": [{"id": lease["id"], "version": lease["version"]}]})
    until(lambda: states(url)["total"] == 0, "the deletes")


# -- credit


def test_credit_is_how_many_leases_a_consumer_holds(url):
    """A deleted or released lease gives its place back, however it was ended."""
    create(url, *({"id": f"m{n}"} for n in range(6)))
    with subscribed(url, credit=2) as session:
        first, second = session.leases(2)
        assert session.has_no_lease()
        session.act("delete", {"id": first["id"], "version": first["version"]})
        third = session.lease()
        session.act("release", {"id": second["id"], "version": second["version"], "in_ms": 60_000})
        fourth = session.lease()
        post(url, "delete", {"id": third["id"], "consumer": "c", "version": third["version"]})
        fifth = session.lease()
        post(url, "release", {"id": fourth["id"], "consumer": "c", "version": fourth["version"], "in_ms": 60_000})
        sixth = session.lease()
        assert session.has_no_lease()
    assert len({lease["id"] for lease in (first, second, third, fourth, fifth, sixth)}) == 6


def test_credit_in_a_frame_is_absolute(url):
    """Less credit takes no lease away; no credit is a pause."""
    create(url, *({"id": f"m{n}"} for n in range(5)))
    with subscribed(url, credit=0) as session:
        assert session.has_no_lease()
        session.send(credit=3)
        leases = session.leases(3)
        session.send(credit=3)
        assert session.has_no_lease()
        session.send(credit=1)
        session.act("delete", *({"id": lease["id"], "version": lease["version"]} for lease in leases[:2]))
        assert session.has_no_lease()
        session.send(credit=2)
        session.lease()
        assert session.has_no_lease()


def test_an_expired_lease_gives_its_place_back(url):
    """The consumer that ignores its messages gets others, and the same ones again."""
    create(url, {"id": "a"}, {"id": "b"})
    with subscribed(url, credit=1, lease_ms=50) as session:
        assert {session.lease()["id"] for _ in range(20)} == {"a", "b"}


# -- sessions


def test_a_consumer_that_returns_gets_its_leases_first(url):
    """With a new version and as another delivery, and they count as held."""
    create(url, *({"id": f"m{n}", "at_ms": n} for n in range(5)))
    with subscribed(url, credit=2) as session:
        before = session.leases(2)
    until(lambda: metric(url, "strandline_open_streams") == 0, "the end of the session")
    with subscribed(url, credit=3) as session:
        after = session.leases(3)
        assert session.has_no_lease()
        assert [lease["id"] for lease in after] == ["m0", "m1", "m2"]
        assert [lease["version"] for lease in after[:2]] == [lease["version"] + 1 for lease in before]
        assert [lease["delivery_count"] for lease in after] == [2, 2, 1]
        item = {"id": "m0", "version": before[0]["version"]}
        assert session.act("delete", item)[0]["code"] == "stale_version"


def test_a_second_session_fences_the_first(url):
    """The first is told so, and closed with 4409; the second goes on."""
    create(url, {"id": "x"})
    with subscribed(url) as first:
        first.lease()
        with subscribed(url) as second:
            assert first.answer("fenced") is True
            assert first.close_code() == 4409
            assert second.lease()["delivery_count"] == 2
            create(url, {"id": "y"})
            assert second.lease()["id"] == "y"


def test_sessions_of_a_deleted_schedule_end(url):
    """They do not wait for messages that never come."""
    with subscribed(url) as session:
        assert CLIENT.delete(url).status_code == 204
        assert session.close_code() == 4409


# -- clocks and pings


def test_pings_compare_the_clocks(url):
    """The answer has the client's time and the database's; the node reports how far they are apart."""
    ahead_ms = 3_600_000
    with subscribed(url, "early") as session:
        sent_ms = time.time_ns() // 1_000_000 + ahead_ms
        session.send(ping={"client_ms": sent_ms})
        pong = session.answer("pong")
        assert pong["client_ms"] == sent_ms
        # The node estimates the time of the database, so it may be a millisecond or two behind.
        assert abs(pong["server_ms"] + ahead_ms - sent_ms) < 60_000
        session.send(ping={"client_ms": 12.5})
        assert session.answer("pong")["client_ms"] == 12.5
        node = url.partition("/schedules")[0]
        clients = CLIENT.get(f"{node}/clocks").json()["clients"]
        assert "early" in {client["name"] for client in clients}
        shown = CLIENT.get(f"{node}/metrics").text
        (line,) = [line for line in shown.splitlines() if 'clock_offset_seconds{consumer="early"}' in line]
        assert 3_540 < float(line.split()[-1]) <= 3_601


def test_pings_of_the_protocol_are_answered(url):
    """Also while nothing else happens."""
    with subscribed(url) as session:
        for _ in range(3):
            assert session.connection.ping().wait(DEADLINE_S)


def test_a_silent_client_is_closed(url):
    """After 30 seconds without a frame. Pings of the protocol are no frames."""
    with connect(address(url), compression=None, ping_interval=2) as connection:
        assert Session(connection).close_code() == 4408


# -- refusals


def refused(target: str, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refusal, connect(target, **options):
        pass
    response = refusal.value.response
    assert response.headers["Content-Type"] == "application/problem+json"
    return response.status_code, json.loads(response.body)["code"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"consumer": "c", "lease_ms": 1000},
        {"consumer": "c", "credit": 1},
        {"lease_ms": 1000, "credit": 1},
        {"consumer": "", "lease_ms": 1000, "credit": 1},
        {"consumer": "c" * 256, "lease_ms": 1000, "credit": 1},
        {"consumer": "c\0", "lease_ms": 1000, "credit": 1},
        {"consumer": "c", "lease_ms": "long", "credit": 1},
        {"consumer": "c", "lease_ms": 1000, "credit": -1},
        {"consumer": "c", "lease_ms": 1000, "credit": 10_001},
        {"consumer": "c", "lease_ms": 1000, "credit": "much"},
    ],
)
def test_a_bad_query_is_refused_at_the_handshake(url, query):
    """As a problem document with a status of 4xx."""
    assert refused(f"{url.replace('http', 'ws', 1)}/subscribe?{urlencode(query)}") == (422, "invalid")


@pytest.mark.parametrize("lease_ms", [0, 5, 300_001, 10**30])
def test_a_lease_time_out_of_range_is_refused_at_the_handshake(url, lease_ms):
    """As over HTTP."""
    assert refused(address(url, lease_ms=lease_ms)) == (422, "bad_timestamp")


def test_other_handshakes_are_refused(server, url):
    """Unknown schedules and paths, dead messages, and paths that are no WebSockets."""
    base = server.url.replace("http", "ws", 1)
    assert refused(address(f"{server.url}/schedules/unknown")) == (404, "not_found")
    assert refused(address(f"{server.url}/schedules/a%00")) == (404, "not_found")
    assert refused(address(f"{url}.dead")) == (409, "conflict")
    assert refused(f"{base}/nothing") == (404, "not_found")
    assert refused(f"{base}/health") == (400, "malformed")
    assert refused(f"{base}/schedules") == (400, "malformed")


def test_a_handshake_of_a_page_of_another_origin_is_refused(server, url):
    """A browser sends the origin with every handshake, and no rule of its own stops it."""
    assert refused(address(url), origin="http://example.com") == (403, "forbidden")
    assert refused(address(url), additional_headers={"Sec-Fetch-Site": "cross-site"}) == (403, "forbidden")
    with connect(address(url), origin=server.url):
        pass
    status, raw = handshake(server, f"/schedules/{url.rpartition('/')[2]}/subscribe", host="example.com")
    raw.close()
    assert b" 421" in status


def test_a_request_without_a_handshake_is_told_to_upgrade(url):
    """The path is a WebSocket."""
    answer = CLIENT.get(f"{url}/subscribe", params={"consumer": "c", "lease_ms": 1000, "credit": 1})
    assert (answer.status_code, answer.json()["code"]) == (426, "upgrade_required")
    assert answer.headers["Upgrade"] == "websocket"


def test_sessions_count_as_streams(tmp_path):
    """More than the limit are refused until one ends."""
    with Server(tmp_path / "data", server_max_streams=2) as server:
        url = new_schedule(server, "few")
        with subscribed(url, "a"):
            with subscribed(url, "b"):
                assert refused(address(url, "c")) == (503, "too_many_streams")
            until(lambda: metric(url, "strandline_open_streams") == 1, "the end of a session")
            with subscribed(url, "c") as session:
                assert session.has_no_lease()


# -- garbage

BAD_FRAMES: list[tuple[str | bytes, str]] = [
    ("", "malformed"),
    ("{", "malformed"),
    ("garbage", "malformed"),
    ("\0", "malformed"),
    ("[" * 100_000, "malformed"),
    ("null", "invalid"),
    ("[]", "invalid"),
    ("7", "invalid"),
    ("{}", "invalid"),
    (b"", "invalid"),
    (b'{"credit": 1}', "invalid"),
    (b"\xff\xfe", "invalid"),
    ('{"lease": {}}', "invalid"),
    ('{"credit": 1, "ping": {"client_ms": 1}}', "invalid"),
    ('{"credit": -1}', "invalid"),
    ('{"credit": 10001}', "invalid"),
    ('{"credit": 1.5}', "invalid"),
    ('{"credit": "1"}', "invalid"),
    ('{"credit": null}', "invalid"),
    ('{"ping": {}}', "invalid"),
    ('{"ping": {"client_ms": "now"}}', "invalid"),
    ('{"ping": {"client_ms": 1e300}}', "invalid"),
    ('{"ping": {"client_ms": 99999999999999999999999999}}', "invalid"),
    ('{"ping": null}', "invalid"),
    ('{"delete": {"items": [{"id": "x", "version": 1}], "reff": 1}}', "invalid"),
    ('{"delete": {}}', "invalid"),
    ('{"delete": {"items": []}}', "invalid"),
    ('{"delete": {"items": 7}}', "invalid"),
    ('{"delete": {"ref": {}, "items": [7]}}', "invalid"),
    ('{"delete": [7]}', "invalid"),
    ('{"extend": {"ref": "r", "items": null}}', "invalid"),
    (json.dumps({"release": {"items": [7] * 10_001}}), "invalid"),
    (json.dumps("x" * MAX_FRAME), "too_large"),
]


def test_a_bad_frame_is_answered_and_the_connection_lives(url):
    """Every kind of garbage gets an error, and the next frame its answer."""
    with subscribed(url) as session:
        for frame, code in BAD_FRAMES:
            session.connection.send(frame)
            error = session.answer("error")
            assert error["code"] == code, (frame[:60], error)
            assert error["detail"]
        create(url, {"id": "x"})
        lease = session.lease()
        assert session.act("delete", {"id": "x", "version": lease["version"]})[0]["status"] == "ok"


def test_a_bad_item_fails_alone(url):
    """The others of its frame are handled."""
    create(url, {"id": "x"})
    with subscribed(url) as session:
        version = session.lease()["version"]
        good = {"id": "x", "version": version, "in_ms": 50_000}
        bad = [
            7, None, {}, {"id": "x"}, {"version": 1}, {"id": "x", "version": version},
            {**good, "at_ms": 1}, {**good, "version": "1"}, {**good, "id": ""}, {**good, "in_ms": "1"},
            {**good, "version": 2**63}, {**good, "in_ms": 10**30}, {**good, "consumer": 7},
            {**good, "consumer": ""},
        ]  # fmt: skip
        assert [answer.get("code") for answer in session.act("delete", good)] == ["invalid"]  # it has no moment
        answers = session.act("extend", *bad, good)
        assert [answer.get("code", "ok") for answer in answers] == ["invalid"] * len(bad) + ["ok"]
        other = {**good, "consumer": "other", "version": version + 1}
        assert session.act("release", other)[0]["code"] == "not_holder"


def test_a_frame_that_no_server_takes_ends_only_its_connection(server, url):
    """The node goes on."""
    with subscribed(url) as session, suppress(ConnectionClosed):
        session.connection.send("x" * 70_000_000)
        session.close_code()
    with subscribed(url) as session:
        assert session.has_no_lease()


def handshake(
    server: Server, path: str, host: str = "localhost", receive_buffer: int = 0
) -> tuple[bytes, socket.socket]:
    """The answer to a handshake over a plain socket."""
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.connect(("127.0.0.1", server.port))
    key = base64.b64encode(os.urandom(16)).decode()
    raw.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    return raw.recv(12), raw


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00" * 100,  # a continuation of nothing, not masked
        b"\xff" * 100,  # reserved bits
        b"\x81\x05hello",  # not masked
        b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + b"\x00" * 4,  # a length of 2^63 - 1
        b"\x81\x82\x00\x00\x00\x00\xff\xfe",  # a text that is not UTF-8
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x81",  # cut
    ],
)
def test_bytes_that_are_no_frames_end_the_session(server, url, sent):
    """Nothing stays behind."""
    path = f"/schedules/{url.rpartition('/')[2]}/subscribe?consumer=c&lease_ms=60000&credit=1"
    status, raw = handshake(server, path)
    assert b" 101" in status
    raw.sendall(sent)
    raw.shutdown(socket.SHUT_WR)
    with raw, suppress(ConnectionError):
        while raw.recv(65_536):
            pass
    until(lambda: metric(url, "strandline_open_streams") == 0, "the end of the session")


# -- slow and vanished clients


def flooded(server: Server, url: str, count: int) -> socket.socket:
    """A session that gets `count` messages of half a megabyte and reads nothing after the handshake."""
    for number in range(count):
        create(url, {"id": f"m{number:03}", "body": "x" * 500_000})
    name = url.rpartition("/")[2]
    path = f"/schedules/{name}/subscribe?consumer=slow&lease_ms=300000&credit={count}"
    status, raw = handshake(server, path, receive_buffer=4096)
    assert b" 101" in status
    return raw


def is_settled(url: str) -> bool:
    """Whether no more messages are being leased: the counts are the same after some requests."""
    found = states(url)
    return found["processing"] > 0 and all(states(url) == found for _ in range(20))


def test_what_waits_for_a_slow_reader_is_bounded(server, url):
    """Most messages stay available for others. What was not written is given back when the client vanishes."""
    with flooded(server, url, 60) as raw:
        until(lambda: is_settled(url), "the end of leasing")
        assert states(url)["processing"] < 40
        assert metric(url, "strandline_stream_bytes") < 4_000_000
        with subscribed(url, "other", credit=5) as other:  # others are served meanwhile
            assert len(other.leases(5)) == 5
        raw.settimeout(DEADLINE_S)
        with subscribed(url, "slow", credit=0):  # so that no more is leased to it
            until(lambda: metric(url, "strandline_stream_bytes") == 0, "the end of the first session")
            before = states(url)
            assert before["available"] > 0
    until(lambda: metric(url, "strandline_open_streams") == 0, "the end of all sessions")
    fresh = [item for item in page(url, "available") if item["delivery_count"] == 0]
    assert len(fresh) == states(url)["available"]  # what was given back does not count as delivered


def page(url: str, state: str) -> list[dict[str, Any]]:
    return CLIENT.get(f"{url}/messages", params={"state": state, "limit": 1000}).json()["items"]


def test_a_client_that_vanishes_frees_its_session(server, url):
    """Its process is gone: the written leases expire, the others are available at once."""
    raw = flooded(server, url, 30)
    until(lambda: is_settled(url), "the end of leasing")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, as after kill -9
    raw.close()
    until(lambda: metric(url, "strandline_open_streams") == 0, "the end of the session")
    until(lambda: metric(url, "strandline_stream_bytes") == 0, "the release of its memory")
    found = until(lambda: states(url)["available"] > 10 and states(url), "what was given back")
    assert found["total"] == 30
    with subscribed(url, "next", credit=30) as session:
        counts = [lease["delivery_count"] for lease in session.leases(found["available"])]
    assert counts == [1] * found["available"]


def test_a_client_that_stops_reading_is_closed(tmp_path):
    """Its connection does not stay open, and what was not written is given back."""
    with Server(tmp_path / "data", server_stalled_client_ms=1000) as server:
        url = new_schedule(server, "stalled")
        with flooded(server, url, 30) as raw:
            until(lambda: metric(url, "strandline_open_streams") == 0, "the end of the session")
            until(lambda: metric(url, "strandline_stream_bytes") == 0, "the release of its memory")
            until(lambda: states(url)["available"] > 10, "what was given back")
            raw.settimeout(DEADLINE_S)
            with suppress(ConnectionError):
                while raw.recv(1 << 20):  # what was on its way, and then the end
                    pass


def test_a_client_that_sends_without_reading_is_slowed_down(url):
    """No answer is lost, and the node does not keep them all in memory."""
    with subscribed(url) as session:
        sending = threading.Thread(
            target=lambda: [session.send(ping={"client_ms": number}) for number in range(20_000)]
        )
        sending.start()
        found = [session.answer("pong")["client_ms"] for _ in range(20_000)]
        sending.join()
    assert found == [*range(20_000)]


# -- a node that stops


def test_a_node_that_stops_closes_its_sessions(tmp_path):
    """With 1012, after the results of what was asked; another node would go on at once."""
    with Server(tmp_path / "data", server_drain_timeout_ms=20_000) as server:
        url = new_schedule(server, "stopping")
        create(url, *({"id": f"m{n}"} for n in range(3)))
        with subscribed(url, "a") as session, subscribed(url, "b") as idle:
            leases = session.leases(3)
            session.send(delete={"ref": 1, "items": [{"id": x["id"], "version": x["version"]} for x in leases]})
            assert [item["status"] for item in session.answer("results")["items"]] == ["ok"] * 3
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            assert (session.close_code(), idle.close_code()) == (1012, 1012)
            stopping.join()


def test_leases_that_were_not_written_are_given_back_when_the_node_stops(tmp_path):
    """The next node has them at once, and they do not count as delivered."""
    data = tmp_path / "data"
    with Server(data) as server:
        url = new_schedule(server, "unwritten")
        raw = flooded(server, url, 30)
        until(lambda: is_settled(url), "the end of leasing")
        assert server.stop() == 0
        raw.close()
    with Server(data) as server:
        url = f"{server.url}/schedules/unwritten"
        available = page(url, "available")
        assert len(available) > 10
        assert {item["delivery_count"] for item in available} == {0}


def test_a_session_survives_nothing_of_a_killed_node(tmp_path):
    """The leases that were written are handed back to the same consumer by the next node."""
    data = tmp_path / "data"
    with Server(data) as server:
        url = new_schedule(server, "killed")
        create(url, {"id": "x"})
        with subscribed(url) as session:
            version = session.lease()["version"]
            server.kill()
            assert session.close_code() == 1006
    with Server(data) as server, subscribed(f"{server.url}/schedules/killed") as session:
        lease = session.lease()
        assert (lease["id"], lease["version"], lease["delivery_count"]) == ("x", version + 1, 2)


def test_the_clock_of_the_node_ends_no_leases(tmp_path, postgres):
    """The node is 400 ms ahead of the database. Leases of 300 ms are active by the clock that counts."""
    flags = {"schedule_url": postgres.url(postgres.new_database()), "logs_level": "warning"}
    with Server(tmp_path / "data", env={"STRANDLINE_TEST_CLOCK": "+400,1"}, **flags) as ahead:
        url = new_schedule(ahead, "s")
        create(url, {"id": "a"})
        with subscribed(url, lease_ms=300) as session:
            assert session.lease()["id"] == "a"


def test_a_lower_credit_gives_back_what_was_not_written(server, request):
    """These leases do not count as deliveries: with one attempt, the messages would be dead."""
    url = new_schedule(server, f"lower{abs(hash(request.node.nodeid))}", max_attempts=1)
    count = 1000
    create(url, *({"id": f"m{number}"} for number in range(count)))
    with subscribed(url, credit=count) as session:
        session.send(credit=0)
        session.has_no_lease()
        seen = session.waiting_leases
        until(lambda: states(url)["processing"] == seen, "the others are given back")
        assert session.has_no_lease() or session.waiting_leases == seen
        asked = {"consumer": "d", "lease_ms": 60_000, "limit": count}
        others = CLIENT.post(f"{url}/leases", json=asked).json()["items"]
        assert [lease["delivery_count"] for lease in others] == [1] * (count - seen)
