"""Feeds over HTTP on every engine: histories in any order, through kills of the node, and after a replay."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from plain_feeds import PlainFeeds
from services import CLIENT, Server, run_cli
from services.valkey import ValkeyCluster, ValkeyServer
from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    Entry,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
)
from strandline.feeds.storage.redis_layout import list_key

FEEDS = ("ada", "bob", "eve", "joe")
MSGPACK = "application/msgpack"
_METADATA = (None, b"", b"a", b"\x00\xff", b"z" * 300)


class Store:
    """Where the feeds of a server are, and how they get lost."""

    def __init__(self, data: Path, valkey: ValkeyServer | ValkeyCluster | None) -> None:
        self.data = data
        self._valkey = valkey
        self.env = {"STRANDLINE_FEEDS__URL": valkey.url} if valkey else {}
        if valkey is not None:
            valkey.flush()

    def wipe(self) -> None:
        """While no server runs."""
        if self._valkey is not None:
            key = list_key(FEEDS[0])
            master = self._valkey if isinstance(self._valkey, ValkeyServer) else self._valkey.master_of(key)
            assert master.execute("EXISTS", key) == 1
            self._valkey.flush()
        for file in self.data.glob("feeds.db*"):
            file.unlink()


@pytest.fixture(params=["sqlite", "valkey", "valkey_cluster"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path / "data", None if request.param == "sqlite" else request.getfixturevalue(request.param))


def history(chance: random.Random, count: int) -> Iterator[Operation]:
    start = (time.time_ns() // 1_000_000 - 3_600_000) << 20
    ids = [chance.randrange(-(2**63), 2**63) for _ in range(60)] + [-(2**63), 2**63 - 1, 2**53 + 1]
    for _ in range(count):
        at = start + chance.randrange(1, 1000)
        some = tuple(Entry(chance.choice(ids), chance.choice(_METADATA)) for _ in range(chance.randrange(1, 5)))
        feeds = tuple(chance.sample(FEEDS, chance.randrange(1, 4)))
        kind = chance.choice(["append"] * 5 + ["delete", "merge", "unmerge", "set"])
        if kind == "append":
            yield AppendEntry(at, some[0], feeds)
        elif kind == "delete":
            yield DeleteEntry(at, some[0].id, feeds)
        elif kind == "unmerge":
            yield UnmergeEntries(at, feeds[0], tuple(entry.id for entry in some))
        else:
            yield (MergeEntries if kind == "merge" else SetFeed)(at, feeds[0], some)


def request_of(operation: Operation) -> tuple[str, str, dict[str, Any]]:
    times = {"operation_time": operation.time}
    match operation:
        case AppendEntry():
            return "POST", "/feed-entries", {"entry": operation.entry, "feeds": operation.feeds, **times}
        case DeleteEntry():
            return "POST", "/feed-entries/delete", {"id": operation.id, "feeds": operation.feeds, **times}
        case UnmergeEntries():
            entries = [Entry(entry_id) for entry_id in operation.ids]
            return "POST", f"/feeds/{operation.feed}/unmerge", {"entries": entries, **times}
        case MergeEntries():
            return "POST", f"/feeds/{operation.feed}/merge", {"entries": operation.entries, **times}
        case SetFeed():
            return "PUT", f"/feeds/{operation.feed}", {"entries": operation.entries, **times}
    raise AssertionError(operation)


def send(server: Server, operation: Operation, *, packed: bool) -> bool:
    """Whether it was acknowledged."""
    method, path, body = request_of(operation)
    encode, kind = (msgspec.msgpack.encode, MSGPACK) if packed else (msgspec.json.encode, "application/json")
    try:
        answer = CLIENT.request(method, server.url + path, content=encode(body), headers={"Content-Type": kind})
    except httpx.TransportError:
        return False
    assert answer.status_code in {200, 204, 503, 504}, answer.text
    return answer.is_success


def content(server: Server, *, packed: bool) -> dict[str, list[Entry]]:
    """All entries, by name, read in one of the forms and in pages."""
    found: dict[str, list[Entry]] = {}
    for offset in range(0, 100, 25):
        body = {"feeds": FEEDS, "offset": offset, "length": 25}
        headers = {"Accept": MSGPACK if packed else "application/json"}
        answer = CLIENT.post(f"{server.url}/feeds/get", json=body, headers=headers)
        decode = msgspec.msgpack.decode if packed else msgspec.json.decode
        for feed in decode(answer.content)["feeds"]:
            assert feed["status"] == "hit"
            assert all(type(entry["id"]) is (int if packed else str) for entry in feed["entries"])
            entries = msgspec.convert(feed["entries"], list[Entry], strict=False)
            found.setdefault(feed["name"], []).extend(entries)
    return found


class Writers:
    """Threads that send the operations of a history, each until it is acknowledged."""

    def __init__(self, server: Server, operations: Sequence[Operation], chance: random.Random) -> None:
        self._server = server
        self._rest = [(operation, chance.random() < 0.5) for operation in operations]
        self._lock = threading.Lock()
        self.done = 0
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, name=f"writer {number}") for number in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while (one := self._next()) is not None:
                while not send(self._server, one[0], packed=one[1]):
                    time.sleep(0.02)  # the node is being started
                with self._lock:
                    self.done += 1
        except BaseException as error:
            self._errors.append(error)
            raise

    def _next(self) -> tuple[Operation, bool] | None:
        with self._lock:
            return self._rest.pop() if self._rest else None

    def wait(self, done: int) -> None:
        while self.done < done and not self._errors and any(thread.is_alive() for thread in self._threads):
            time.sleep(0.005)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert self._errors == []


@pytest.mark.parametrize(
    ("count", "kills"), [(150, 2), pytest.param(3_000, 20, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_history_in_any_order_with_kills_and_a_replay_gives_the_feeds_of_the_model(store, count, kills):
    """In JSON and MessagePack. What was acknowledged is there after a kill, and comes back from the log alone."""
    chance = random.Random(f"engines {count}")
    operations = [*history(chance, count)]
    created = [SetFeed(operations[0].time >> 20 << 20, name, ()) for name in FEEDS]
    model = PlainFeeds(800)
    for operation in [*created, *operations]:
        model.apply(operation)
    expected = {name: model.entries(name) for name in FEEDS}
    order = operations + chance.sample(operations, count // 5)
    chance.shuffle(order)

    server = Server(store.data, env=store.env, logs_level="warning")
    with server:
        assert all(send(server, operation, packed=False) for operation in created)
        writers = Writers(server, order, chance)
        for number in range(1, kills + 1):
            writers.wait(len(order) * number // (kills + 1))
            server.kill()
            server.start()
        writers.join()
        assert content(server, packed=False) == expected
        assert content(server, packed=True) == expected
    store.wipe()
    replayed = run_cli("feeds", "replay", "--data", str(store.data), **store.env)
    assert replayed.returncode == 0, replayed.stderr
    with server:
        assert content(server, packed=True) == expected
