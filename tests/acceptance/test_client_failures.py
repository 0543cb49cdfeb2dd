"""The client library with servers that are down, slow or hang up: retries, unknown outcomes, reconnects."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

import strandline
from services import Server, free_port
from strandline import EventType, Message, Schedule
from strandline.client import Remote, retries, transport
from strandline.errors import Invalid, NotFound, OutcomeUnknown, Unavailable
from strandline.journal import Journal
from strandline.log import Batch
from strandline.log.model import CursorText
from strandline.log.subscriptions.model import Subscription

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
DONE = b"HTTP/1.1 204 No Content\r\n\r\n"
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 4\r\nContent-Type: application/problem+json\r\n"
    b'Content-Length: 38\r\n\r\n{"code":"unavailable","detail":"busy"}'
)
DROP = b""
HANG = None
#: No answer: the server has closed its port.
REFUSED = "refused"


class Scripted:
    """A server that follows a script: it answers with bytes, drops the connection, or does not answer."""

    def __init__(self, script: list[bytes | None], port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.heads: list[bytes] = []
        self._hanging: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, args=(script,))
        self._thread.start()

    def _run(self, script: list[bytes | None]) -> None:
        for left, answer in zip(reversed(range(len(script))), script, strict=True):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.requests.append(self._request(connection))
            if answer is HANG:
                self._hanging.append(connection)
                continue
            connection.sendall(answer)
            if not left:
                self._listener.close()  # before the client can send the next request
            connection.close()

    def _request(self, connection: socket.socket) -> bytes:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, body = received.split(b"\r\n\r\n", 1)
        lengths = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length")]
        while lengths and len(body) < int(lengths[0]):
            body += connection.recv(65536)
        self.heads.append(head)
        return head.splitlines()[0] + b" " + body

    def close(self) -> None:
        with suppress(OSError):  # closed after its last answer
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for connection in self._hanging:
            connection.close()


@contextmanager
def scripted(*script: bytes | None) -> Iterator[Scripted]:
    server = Scripted(list(script))
    try:
        yield server
    finally:
        server.close()


def test_no_server_is_unavailable_and_says_how_to_start_one():
    """A refused connection is Unavailable for reads and writes; the outcome is never unknown."""
    with strandline.connect(f"http://127.0.0.1:{free_port()}") as remote:
        for act in (remote.check_ready, remote.log.event_types, lambda: remote.log.publish("orders", [{}])):
            with pytest.raises(Unavailable, match=r"no server answers at .*strandline serve"):
                act()


def test_a_refused_publish_is_sent_again(monkeypatch: pytest.MonkeyPatch):
    """A publish whose connection was refused is retried and arrives once."""
    port = free_port()
    servers: list[Scripted] = []
    pause = SimpleNamespace(sleep=lambda _: servers.append(Scripted([GOOD], port)))
    monkeypatch.setattr(transport, "time", pause)
    with strandline.connect(f"http://127.0.0.1:{port}") as remote:
        assert remote.log.publish("orders", [{"n": 1}]).ok
    (server,) = servers
    server.close()
    assert server.requests == [b'POST /event-types/orders/events HTTP/1.1 [{"n":1}]']


def test_a_lost_answer_is_in_doubt_and_never_sent_again():
    """A publish without a response is OutcomeUnknown and is not retried: it may have been stored."""
    with scripted(DROP, GOOD) as server, strandline.connect(server.url) as remote:
        with pytest.raises(OutcomeUnknown, match="check before you retry"):
            remote.log.publish("orders", [{"n": 1}])
        assert len(server.requests) == 1


def test_an_answer_that_does_not_come_in_time_is_in_doubt():
    """A publish without a response before the timeout is OutcomeUnknown, in the future of `submit`."""
    with scripted(HANG) as server, strandline.connect(server.url, timeout=0.3) as remote:
        future = remote.log.submit("orders", [{}])
        with pytest.raises(OutcomeUnknown):
            future.result(10)


def test_an_unknown_outcome_is_repeated_when_told_to(monkeypatch: pytest.MonkeyPatch):
    """With `retry_unknown` the same batch is sent until the server answers."""
    monkeypatch.setattr("strandline.client.log._UNKNOWN_PAUSES_S", (0, 0, 0))
    with scripted(DROP, DROP, GOOD) as server, strandline.connect(server.url, retry_unknown=True) as remote:
        assert remote.log.publish("orders", [{"n": 1}]).ok
        assert len(server.requests) == 3
        assert len(set(server.requests)) == 1


def test_doubt_stays_when_the_repetition_fails_too(monkeypatch: pytest.MonkeyPatch):
    """The outcome stays unknown if the retries fail, because the first attempt may have been stored."""
    monkeypatch.setattr("strandline.client.log._UNKNOWN_PAUSES_S", (0,))
    with (
        scripted(DROP, BUSY) as server,
        strandline.connect(server.url, retry_unknown=True) as remote,
        pytest.raises(OutcomeUnknown),
    ):
        remote.log.publish("orders", [{}])


def test_a_busy_server_is_not_asked_again():
    """A 503 is not retried, even with `retry_unknown`. The error has the time of `Retry-After`."""
    with scripted(BUSY) as server, strandline.connect(server.url, retry_unknown=True) as remote:
        with pytest.raises(Unavailable, match="busy") as caught:
            remote.log.publish("orders", [{}])
        assert caught.value.retry_after == 4
        assert len(server.requests) == 1


def test_a_read_that_broke_off_is_asked_again():
    """A read whose connection is lost is retried; reads are idempotent."""
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    with scripted(DROP, good) as server, strandline.connect(server.url) as remote:
        assert remote.log.event_types() == []
        assert len(server.requests) == 2


def test_a_read_whose_connections_break_is_unavailable():
    """A read changes nothing, so there is no doubt: it is only sent twice. The same for a POST that only asks."""
    for ask in (lambda log: log.event_types(), lambda log: log.lag("orders", [CursorText("0", "BEGIN")])):
        with scripted(DROP, DROP) as server, strandline.connect(server.url) as remote:
            with pytest.raises(Unavailable, match="broke"):
                ask(remote.log)
            assert len(server.requests) == 2


REPEATABLE: list[Callable[[Remote], object]] = [
    lambda remote: remote.schedules.put(Schedule("jobs")),
    lambda remote: remote.schedule("jobs").pull("ada", 1000, 1),
    lambda remote: remote.journals.create("carts"),
    lambda remote: remote.log.subscriptions.create(Subscription("app", ["orders"])),
    lambda remote: remote.log.subscriptions.delete(str(UUID(int=1))),
    lambda remote: remote.log.subscriptions.reset(str(UUID(int=1))),
]


@pytest.mark.parametrize("change", REPEATABLE)
@pytest.mark.parametrize("second", [DROP, BUSY, REFUSED])
def test_a_repeated_change_stays_in_doubt(monkeypatch: pytest.MonkeyPatch, change, second):
    """The first request may have been executed, so the outcome is unknown if the second one certainly was not."""
    monkeypatch.setattr(transport, "_REFUSED_PAUSES_S", ())
    script = [DROP] if second is REFUSED else [DROP, second]
    with scripted(*script) as server, strandline.connect(server.url) as remote:
        with pytest.raises(OutcomeUnknown, match="check before you retry"):
            change(remote)
        assert len(server.requests) == len(script)


def test_a_change_that_is_sent_for_some_seconds_stays_in_doubt(monkeypatch: pytest.MonkeyPatch):
    """A create of messages is repeated while no server answers. It is in doubt if the first response was lost."""
    monkeypatch.setattr(transport, "_REFUSED_PAUSES_S", ())
    monkeypatch.setattr(retries, "_PAUSES_S", (0.0,))
    with scripted(DROP) as server, strandline.connect(server.url) as remote, pytest.raises(OutcomeUnknown):
        remote.schedule("jobs").create([Message("one")])


def test_a_change_without_an_answer_in_time_is_in_doubt():
    """The server may still execute it."""
    with (
        scripted(HANG) as server,
        strandline.connect(server.url, timeout=0.3) as remote,
        pytest.raises(OutcomeUnknown),
    ):
        remote.schedules.put(Schedule("jobs"))


NOT_REPEATABLE: list[Callable[[Journal], object]] = [
    lambda journal: journal.purge("one"),
    lambda journal: journal.delete("one", 1),
    lambda journal: journal.save_snapshot("one", 1, "state"),
    lambda journal: journal.delete_snapshot("one", 1),
]


@pytest.mark.parametrize("change", NOT_REPEATABLE)
@pytest.mark.parametrize(("answer", "error"), [(DROP, OutcomeUnknown), (BUSY, Unavailable)])
def test_a_change_of_a_journal_without_a_life_is_sent_once(change, answer, error):
    """A repetition could act on what another writer has stored since."""
    with scripted(answer, DONE) as server, strandline.connect(server.url) as remote:
        with pytest.raises(error):
            change(remote.journal("carts"))
        assert len(server.requests) == 1


def test_the_deletion_of_a_schedule_is_sent_once():
    """A repetition could delete a schedule that was created again since, with its messages."""
    with scripted(DROP, DONE) as server, strandline.connect(server.url) as remote:
        with pytest.raises(OutcomeUnknown):
            remote.schedules.delete("jobs")
        assert len(server.requests) == 1


@pytest.mark.parametrize("change", NOT_REPEATABLE)
def test_a_refused_change_of_a_journal_is_sent_again(monkeypatch: pytest.MonkeyPatch, change):
    """The server cannot have got it."""
    port = free_port()
    servers: list[Scripted] = []
    monkeypatch.setattr(transport, "_REFUSED_PAUSES_S", ())
    pause = SimpleNamespace(sleep=lambda _: servers.append(Scripted([DONE], port)), monotonic=time.monotonic)
    monkeypatch.setattr(retries, "time", pause)
    with strandline.connect(f"http://127.0.0.1:{port}") as remote:
        change(remote.journal("carts"))
    (server,) = servers
    server.close()
    assert len(server.requests) == 1


EMPTY_LIST = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


@pytest.mark.parametrize("with_port", [False, True])
def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, with_port):
    """Requests go through the proxy in `HTTP_PROXY`, unless `NO_PROXY` names the server, perhaps with its port."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with scripted(EMPTY_LIST) as proxy, scripted(EMPTY_LIST) as server:
        monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://"))
        monkeypatch.setenv("no_proxy", server.url.removeprefix("http://") if with_port else "127.0.0.1")
        with (
            strandline.connect("http://strandline.invalid:81/node") as far,
            strandline.connect(server.url) as near,
        ):
            assert far.log.event_types() == near.log.event_types() == []
        assert proxy.requests == [b"GET http://strandline.invalid:81/node/event-types HTTP/1.1 "]
        assert server.requests == [b"GET /event-types HTTP/1.1 "]


def test_a_password_in_the_address_is_sent():
    """A proxy in front of the server may ask for a name and a password. Messages do not show them."""
    with scripted(EMPTY_LIST) as server:
        address = server.url.replace("//", "//ann:p%40ss@")
        with strandline.connect(address) as remote:
            assert remote.log.event_types() == []
            assert "p%40ss" not in remote.url
        login = base64.b64encode(b"ann:p@ss")
        assert b": Basic " + login in server.heads[0]


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://host", "http://", "data"])
def test_an_address_that_is_none_is_refused_at_once(url: str):
    """`connect` refuses an invalid URL."""
    with pytest.raises(Invalid, match="not the URL of a server"):
        strandline.connect(url)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts servers on one data directory. They are killed after the test."""
    started: list[Server] = []

    def start(**options: Any) -> Server:
        started.append(Server(tmp_path / "data", **options).start())
        return started[-1]

    yield start
    for server in started:
        server.kill()


def follow_orders(remote: Remote, count: int) -> Iterator[Batch]:
    """A following reader that has read the first `count` events."""
    remote.log.create(EventType("orders"))
    remote.log.publish("orders", [{"n": number} for number in range(count)]).raise_for_failed()
    batches = remote.log.read("orders", follow=True)
    assert [event["n"] for event in next(batches).events] == list(range(count))
    return batches


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_follower_survives_its_server(serve: Callable[..., Server], ending: str):
    """A reader continues when its server is stopped or killed and restarted. No event is lost or repeated."""
    server = serve()
    with strandline.connect(server.url) as remote:
        batches = follow_orders(remote, 10)
        getattr(server, ending)()
        serve(port=server.port)
        remote.log.publish("orders", [{"n": number} for number in range(10, 20)]).raise_for_failed()
        found: list[int] = []
        while len(found) < 10:
            found += [event["n"] for event in next(batches).events]
        assert found == list(range(10, 20))
        batches.close()


def test_a_follower_of_a_deleted_event_type_is_told(serve: Callable[..., Server]):
    """A follower gets NotFound when its event type is deleted."""
    with strandline.connect(serve().url) as remote:
        batches = follow_orders(remote, 1)
        remote.log.delete("orders")
        with pytest.raises(NotFound):
            next(batches)


def test_a_stopping_server_does_not_wait_for_followers(serve: Callable[..., Server]):
    """A stopping server ends open streams at once, long before the drain timeout."""
    server = serve(server_drain_timeout_ms=600_000)
    with strandline.connect(server.url) as remote:
        batches = follow_orders(remote, 1)
        assert server.stop() == 0
        batches.close()


def test_a_follower_does_not_wait_for_ever_for_a_server_that_is_gone(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
):
    """A follower whose server does not come back gets Unavailable after a timeout."""
    monkeypatch.setattr("strandline.client.reading._PATIENCE_S", 0.5)
    server = serve()
    with strandline.connect(server.url) as remote:
        batches = follow_orders(remote, 1)
        server.kill()
        with pytest.raises(Unavailable, match="no server answers"):
            next(batches)


def test_a_slow_follower_reconnects(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch):
    """The timeout starts when the loss is noticed, even if the caller worked on a batch for longer than that."""
    monkeypatch.setattr("strandline.client.reading._PATIENCE_S", 0)
    server = serve()
    with strandline.connect(server.url) as remote:
        batches = follow_orders(remote, 1)
        server.kill()
        serve(port=server.port)
        remote.log.publish("orders", [{"n": 1}]).raise_for_failed()
        assert [event["n"] for event in next(batches).events] == [1]
        batches.close()
