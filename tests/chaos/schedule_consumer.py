"""A consumer of a schedule, run as a process that tests kill and pause. It writes what it sees to a line file.

    python schedule_consumer.py push|pull FILE NAME LEASE_MS SEED SCHEDULE-URL…

It speaks HTTP and WebSocket frames itself, because the client library hides repeated leases. Some leases are
deleted, some extended first, some released into the future, and some are left to expire.
"""

import http.client
import itertools
import json
import random
import sys
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

from line_file import LineFile
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

CREDIT = 8
WAIT_MS = 500
PAUSE_S = 0.05
# A node that has not answered for this long counts as paused, and the next request goes to another one.
ASLEEP_S = 3.0
#: Errors that nodes may give while they are disturbed.
_UNAVAILABLE = {502, 503, 504}

Items = list[dict[str, Any]]


class Gone(Exception):
    """The node does not answer, or cannot help now."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Pull:
    """Leases by long polls. Every request goes to a random node."""

    def __init__(self, urls: list[str], name: str, lease_ms: int, dice: random.Random) -> None:
        self._urls, self._dice = urls, dice
        self._asked = {"consumer": name, "lease_ms": lease_ms, "limit": CREDIT, "wait_ms": WAIT_MS}

    def receive(self, _seconds: float) -> Items:
        asked_ms = now_ms()
        return [{**lease, "asked_ms": asked_ms} for lease in self._post("leases", self._asked)]

    def act(self, kind: str, items: Items) -> Items:
        return self._post(kind, {"items": items})

    def _post(self, verb: str, body: dict[str, Any]) -> Items:
        address = urlsplit(self._dice.choice(self._urls))
        connection = http.client.HTTPConnection(address.netloc, timeout=ASLEEP_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"{address.path}/{verb}", json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Gone(repr(error)) from error
        finally:
            connection.close()
        if response.status in _UNAVAILABLE:
            raise Gone(f"{response.status} {content!r}")
        return json.loads(content)["items"]


class Push:
    """Leases over a WebSocket to a random node, until it breaks."""

    def __init__(self, urls: list[str], name: str, lease_ms: int, dice: random.Random) -> None:
        self._urls, self._dice = urls, dice
        self._query = urlencode({"consumer": name, "lease_ms": lease_ms, "credit": CREDIT})
        self._socket: ClientConnection | None = None
        self._leases: Items = []
        self._refs = itertools.count()

    def receive(self, seconds: float) -> Items:
        deadline = time.monotonic() + seconds
        while not self._leases and (left := deadline - time.monotonic()) > 0:
            self._take(left)
        found, self._leases = self._leases, []
        return found

    def act(self, kind: str, items: Items) -> Items:
        ref = next(self._refs)
        self._send({kind: {"ref": ref, "items": [{**item} for item in items]}})
        deadline = time.monotonic() + ASLEEP_S
        while (left := deadline - time.monotonic()) > 0:
            found = self._take(left)
            if "error" in found:
                break
            if found.get("results", {}).get("ref") == ref:
                return found["results"]["items"]
        raise self._broken(f"no answer to {kind}")

    def _take(self, seconds: float) -> dict[str, Any]:
        """The next frame; empty if none came in time. Leases are kept."""
        try:
            frame = json.loads(self._open().recv(seconds))
        except TimeoutError:
            self._send({"ping": {"client_ms": now_ms()}})
            return {}
        except ConnectionClosed as error:
            raise self._broken(str(error)) from error
        if "lease" in frame:
            self._leases.append(frame["lease"])
        return frame

    def _send(self, frame: dict[str, Any]) -> None:
        try:
            self._open().send(json.dumps(frame))
        except ConnectionClosed as error:
            raise self._broken(str(error)) from error

    def _open(self) -> ClientConnection:
        if self._socket is None:
            address = f"{self._dice.choice(self._urls).replace('http', 'ws', 1)}/subscribe?{self._query}"
            try:
                self._socket = connect(address, compression=None, open_timeout=ASLEEP_S, close_timeout=0)
            except (OSError, TimeoutError, InvalidHandshake) as error:
                raise Gone(repr(error)) from error
        return self._socket

    def _broken(self, why: str) -> Gone:
        """Leases that arrived stay: the consumer has them."""
        if self._socket is not None:
            with suppress(Exception):
                self._socket.close()
        self._socket = None
        return Gone(why)


class Consumer:
    """What is done with each lease is decided when it arrives."""

    def __init__(self, link: Pull | Push, file: LineFile, name: str, lease_ms: int, seed: str) -> None:
        self._link, self._file, self._name, self._lease_ms = link, file, name, lease_ms
        self._dice = random.Random(seed)
        self._refs = (f"{seed}/{number}" for number in itertools.count())
        #: The next act on each lease, and the moment for it.
        self._planned: list[tuple[float, str, dict[str, Any]]] = []

    def run(self) -> None:
        while True:
            try:
                for lease in self._link.receive(0.05 if self._planned else 1.0):
                    self._take(lease)
                self._act()
            except Gone:
                time.sleep(PAUSE_S)

    def _take(self, lease: dict[str, Any]) -> None:
        line = {"what": "lease", "at": now_ms(), "consumer": self._name, "lease_ms": self._lease_ms}
        line |= {"expires_ms": lease["expires_at_ms"], "due_ms": lease["due_at_ms"]}
        told = ("id", "version", "delivery_count", "body", "asked_ms")
        self._file.append({**line, **{name: lease[name] for name in told if name in lease}})
        kind = self._dice.choices(["delete", "extend", "release", "ignore"], [60, 15, 15, 10])[0]
        if kind != "ignore":
            self._plan(kind, lease)

    def _plan(self, kind: str, lease: dict[str, Any]) -> None:
        # Mostly at once, sometimes close to the end of the lease or after it.
        wait = self._dice.choice([0, 0, 0, 0.02, self._lease_ms / 1000 * self._dice.uniform(0.8, 1.1)])
        self._planned.append((time.monotonic() + wait, kind, lease))

    def _act(self) -> None:
        now = time.monotonic()
        ready = [one for one in self._planned if one[0] <= now]
        self._planned = [one for one in self._planned if one[0] > now]
        for kind in ("extend", "release", "delete"):
            if leases := [lease for _, wanted, lease in ready if wanted == kind]:
                self._change(kind, leases)

    def _change(self, kind: str, leases: Items) -> None:
        items = [
            {"id": lease["id"], "version": lease["version"], "consumer": self._name, **self._moment(kind)}
            for lease in leases
        ]
        refs = [next(self._refs) for _ in items]
        for ref, item in zip(refs, items, strict=True):
            self._file.append({"what": "asked", "kind": kind, "at": now_ms(), "ref": ref, **item})
        answers = self._link.act(kind, items)
        for ref, lease, answer in zip(refs, leases, answers, strict=True):
            self._file.append({"what": "answered", "at": now_ms(), "ref": ref, **answer})
            if kind == "extend" and answer["status"] == "ok":
                self._plan("delete", {**lease, "version": answer["version"]})

    def _moment(self, kind: str) -> dict[str, int]:
        if kind == "extend":
            return {"in_ms": self._lease_ms}
        if kind == "release":
            in_ms = self._dice.randrange(6, 500)
            return self._dice.choice([{"in_ms": in_ms}, {"at_ms": now_ms() + in_ms}])
        return {}


def main(kind: str, path: str, name: str, lease_ms: str, seed: str, *urls: str) -> None:
    file = LineFile(path)
    try:
        link = {"push": Push, "pull": Pull}[kind]([*urls], name, int(lease_ms), random.Random(f"link/{seed}"))
        Consumer(link, file, name, int(lease_ms), seed).run()
    except BaseException as error:
        file.append({"what": "error", "text": f"{name}: {error!r}"})
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
