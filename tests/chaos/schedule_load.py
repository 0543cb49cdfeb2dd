"""Producers and consumers of a schedule that note all they do and see, and a plan that disturbs them by seed."""

import os
import random
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
from cluster import away
from line_file import LineFile, lines
from schedule_consumer import now_ms

from services import DEADLINE_S, Process, environment


class Producer(threading.Thread):
    """Creates messages through random nodes, moves and cancels some. Repeats a create until it is answered."""

    def __init__(self, number: int, urls: list[str], folder: Path, seed: int) -> None:
        super().__init__(name=f"producer-{number}")
        self._urls, self._group = urls, f"group-{number}"
        self._dice = random.Random(f"{seed}/{self.name}")
        self.path = folder / f"{self.name}.jsonl"
        self._file = LineFile(self.path)
        self._count = 0
        self._created: list[str] = []
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with httpx.Client(timeout=10) as client:
                while not self._stopping.wait(self._dice.uniform(0.02, 0.2)):
                    self._create(client)
                    self._change_one(client)
        except BaseException as error:
            self._file.append({"what": "error", "text": f"{self.name}: {error!r}"})
            raise

    def stop(self) -> None:
        """Returns when all creates are answered."""
        self._stopping.set()
        self.join()

    def _create(self, client: httpx.Client) -> None:
        items = [self._new() for _ in range(self._dice.choice([1, 1, 5, 20]))]
        deadline = time.monotonic() + DEADLINE_S
        while (answered := self._post(client, "messages", "create", items)) is None:
            assert time.monotonic() < deadline, "no node answers"
            time.sleep(0.1)
        assert {one["code"] for one in answered if one["status"] == "error"} <= {"already_exists"}, answered
        self._created = (self._created + [item["id"] for item in items])[-100:]

    def _new(self) -> dict:
        self._count += 1
        in_ms = self._dice.choice([-50, 0, 10, 200, 1_000, 3_000])
        moment = self._dice.choice([{"in_ms": in_ms}, {"at_ms": now_ms() + in_ms}])
        body = self._dice.randrange(10**9)
        return {"id": f"{self._group}-{self._count}", "producer_group": self._group, "body": body, **moment}

    def _change_one(self, client: httpx.Client) -> None:
        item = {"id": self._dice.choice(self._created), "producer_group": self._group}
        kind = self._dice.choices(["move", "cancel", ""], [15, 5, 80])[0]
        if kind == "move":
            self._post(client, "move", kind, [{**item, "in_ms": self._dice.randrange(1_000)}])
        elif kind == "cancel":
            self._post(client, "delete", kind, [item])

    def _post(self, client: httpx.Client, path: str, kind: str, items: list[dict]) -> list[dict] | None:
        """Note what is asked and answered; None if there is no answer."""
        refs = [f"{self.name}/{item['id']}/{kind}/{time.monotonic_ns()}" for item in items]
        for ref, item in zip(refs, items, strict=True):
            self._file.append({"what": "asked", "kind": kind, "at": now_ms(), "ref": ref, **item})
        try:
            answer = client.post(f"{self._dice.choice(self._urls)}/{path}", json={"items": items})
        except httpx.TransportError:
            return None
        if answer.status_code in {503, 504}:
            return None
        answers = answer.json()["items"]
        for ref, one in zip(refs, answers, strict=True):
            self._file.append({"what": "answered", "at": now_ms(), "ref": ref, **one})
        return answers


class ConsumerProcess:
    """A consumer that keeps its name across `kill` and `bring_back`."""

    def __init__(self, kind: str, number: int, urls: list[str], folder: Path, seed: int) -> None:
        self.name = f"{kind}-{number}"
        self._urls, self._seed = urls, seed
        self._lease_ms = (800, 2_000, 4_000)[number % 3]
        self.kind = kind
        self.path = folder / f"{self.name}.jsonl"
        self._lives = 0
        self._start()

    def _start(self) -> None:
        self._lives += 1
        script = Path(__file__).with_name("schedule_consumer.py")
        told = [self.kind, self.path, self.name, self._lease_ms, f"{self._seed}/{self.name}/{self._lives}"]
        command = [sys.executable, *map(str, [script, *told]), *self._urls]
        log, env = self.path.with_suffix(".log"), environment(PYTHONPATH=os.pathsep.join(sys.path))
        self._process = Process(command, log, env=env)

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        self._process.pause()

    def bring_back(self) -> None:
        """Resume it, or start it again with the same name."""
        if self._process.exit_code is None:
            self._process.resume()
        else:
            self._start()

    def replace(self) -> None:
        """Start it a second time: the new session fences the old one. Then kill the old process."""
        old = self._process
        self._start()
        time.sleep(1)  # both run
        old.kill()


class Disturber(threading.Thread):
    """Kills and pauses one node or consumer again and again. What it does is decided by the seed."""

    def __init__(self, target, seed: int, up_s: tuple[float, float], away_s: float, until_s: float) -> None:
        super().__init__(name=f"disturber-{target.name}")
        self._target, self._up_s, self._away_s = target, up_s, away_s
        self._dice = random.Random(f"{seed}/disturbances/{target.name}")
        self._ends = time.monotonic() + until_s
        self._stopping = threading.Event()
        self.done: list[str] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while time.monotonic() + (wait := self._dice.uniform(*self._up_s)) < self._ends:
                if self._stopping.wait(wait):
                    return
                self._disturb()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def _disturb(self) -> None:
        ways = ["kill", "pause"] + (["replace"] if hasattr(self._target, "replace") else [])
        how, seconds = self._dice.choice(ways), self._dice.uniform(0.05, self._away_s)
        self.done.append(how)
        if how == "replace":
            self._target.replace()
        else:
            with away(self._target, how):
                time.sleep(seconds)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def finish(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error


def all_lines(parts) -> list[dict]:
    return [line for part in parts for line in lines(part.path)]


def left(url: str) -> int | None:
    """How many messages the schedule has; None if the node does not answer."""
    with suppress(httpx.TransportError):
        answer = httpx.get(f"{url}/counts", params={"from": 0, "to": 2**50}, timeout=30)
        if answer.status_code == httpx.codes.OK:
            return answer.json()["total"]
    return None
