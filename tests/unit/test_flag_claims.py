"""Replacing a flag by claims, for every order in which the steps of several writers can run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.archive.files import FileEntry, Files, NewFile, Seen, renaming
from strandline.archive.files.renaming import RenamingFiles
from strandline.errors import Conflict, NotFound, StrandlineError

FLAG = "_READY"


@dataclass
class Disk:
    """The files, and every change of the flag as (before, after)."""

    content: dict[str, bytes] = field(default_factory=dict)
    changes: list[tuple[bytes | None, bytes]] = field(default_factory=list)


class MemoryFiles(RenamingFiles):
    """Files in memory. Every access is atomic, and `step` is called before it."""

    def __init__(self, disk: Disk, step: Callable[[], None]) -> None:
        super().__init__("memory")
        self._disk = disk
        self._step = step

    def create(self, path: str) -> NewFile:
        return MemoryFile(self, path)

    def put(self, path: str, content: bytes) -> None:
        self._step()
        self._disk.content[path] = content

    def look(self, path: str) -> Seen | None:
        self._step()
        found = self._disk.content.get(path)
        return None if found is None else Seen(found, found.decode())

    def entries(self, path: str = "") -> list[FileEntry]:
        assert path == ""
        self._step()
        return [FileEntry(name, len(content)) for name, content in self._disk.content.items()]

    def delete(self, path: str) -> None:
        self._step()
        self._disk.content.pop(path, None)

    def _move(self, source: str, target: str, *, over: bool) -> None:
        self._step()
        if source not in self._disk.content:
            raise NotFound
        if target in self._disk.content and not over:
            raise Conflict
        before = self._disk.content.get(target)
        self._disk.content[target] = self._disk.content.pop(source)
        self._disk.changes.append((before, self._disk.content[target]))

    def _unused(self, path: str = "") -> pa.NativeFile:
        raise NotImplementedError

    open = size = delete_tree = close = _unused


class MemoryFile(NewFile):
    def __init__(self, files: MemoryFiles, path: str) -> None:
        super().__init__()
        self._files, self._path, self._content = files, path, b""

    def _append(self, data: memoryview) -> None:
        self._content += bytes(data)

    def _finish(self) -> None:
        self._files.put(self._path, self._content)

    def _drop(self) -> None:
        """Nothing to delete: the file is stored only by `_finish`."""


class Turns:
    """Runs one of several threads at a time. At each step the plan chooses the thread; 0 is the current one."""

    def __init__(self, plan: list[int], workers: int) -> None:
        self._plan = plan
        self._running = set(range(workers))
        self._changed = threading.Condition()
        self._turn: int | None = None
        #: For each step: the choice that was made, and the number of choices.
        self.taken: list[tuple[int, int]] = []

    def run(self, works: list[Callable[[Callable[[], None]], None]]) -> None:
        threads = [threading.Thread(target=self._work, args=(number, work)) for number, work in enumerate(works)]
        for thread in threads:
            thread.start()
        with self._changed:
            self._choose()
        for thread in threads:
            thread.join()

    def _work(self, number: int, work: Callable[[Callable[[], None]], None]) -> None:
        self._wait(number)
        work(lambda: self._pass_on(number))
        with self._changed:
            self._running.discard(number)
            self._choose()

    def _wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == number)

    def _pass_on(self, number: int) -> None:
        with self._changed:
            self._choose()
        self._wait(number)

    def _choose(self) -> None:
        able = sorted(self._running, key=lambda number: (number != self._turn, number))
        if able:
            choice = self._plan[len(self.taken)] if len(self.taken) < len(self._plan) else 0
            self._turn = able[choice]
            self.taken.append((choice, len(able)))
        self._changed.notify_all()


def orders(works: list[Callable[[MemoryFiles], None]], disk: Callable[[], Disk], switches: int) -> Iterator[Disk]:
    """The disk after each order of steps in which threads are interrupted at most `switches` times in total."""
    plan: list[int] | None = []
    while plan is not None:
        left = disk()
        turns = Turns(plan, len(works))
        turns.run([lambda step, work=work, left=left: work(MemoryFiles(left, step)) for work in works])
        yield left
        plan = following(turns.taken, switches)


def following(taken: list[tuple[int, int]], switches: int) -> list[int] | None:
    """The next plan: the last choice that can still be raised is raised. None after the last plan."""
    for at in range(len(taken) - 1, -1, -1):
        plan = [choice for choice, _ in taken[: at + 1]]
        plan[at] += 1
        if plan[at] < taken[at][1] and sum(choice > 0 for choice in plan[1:]) <= switches:
            return plan
    return None


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt is enough, because a second attempt begins like the first."""
    monkeypatch.setattr(renaming, "_ATTEMPTS", 1)
    # `time.sleep` itself is not replaced, because other threads of the test run need it.
    monkeypatch.setattr(renaming, "time", SimpleNamespace(sleep=lambda _: None))


def replacing(told: list[str], *steps: tuple[bytes, bytes | None]) -> Callable[[Files], None]:
    """A worker that replaces the expected contents one after the other, and records which replaces succeeded."""

    def work(files: Files) -> None:
        for data, expected in steps:
            try:
                files.replace(FLAG, data, expected.decode() if expected else None)
            except StrandlineError:
                return
            told.append(data.decode())

    return work


def check(disk: Disk, told: list[str], expected: dict[bytes, bytes | None]) -> None:
    """Every change replaced the expected content, and exactly the changes that happened were reported."""
    assert [expected[after] for _, after in disk.changes] == [before for before, _ in disk.changes]
    assert sorted(told) == sorted(after.decode() for _, after in disk.changes)


@pytest.mark.parametrize("before", [None, b"0"])
def test_one_of_two_comes_through(before):
    """At most one of two writers replaces the flag. Both fail if they delete each other's claims."""
    told: list[str] = []
    works = [replacing(told, (b"P", before)), replacing(told, (b"Q", before))]
    count, succeeded = 0, 0
    for disk in orders(works, lambda: Disk({FLAG: before} if before else {}), switches=99):
        check(disk, told, {b"P": before, b"Q": before})
        assert len(disk.changes) <= 1
        count, succeeded = count + 1, succeeded + len(disk.changes)
        told.clear()
    assert count > 200
    assert succeeded > 100


def test_a_late_one_overwrites_nothing():
    """A late writer that expects revision 1 never overwrites revision 2 or 3 of another writer."""
    told: list[str] = []
    works = [replacing(told, (b"late", b"1")), replacing(told, (b"2", b"1"), (b"3", b"2"))]
    for disk in orders(works, lambda: Disk({FLAG: b"1"}), switches=4):
        check(disk, told, {b"late": b"1", b"2": b"1", b"3": b"2"})
        told.clear()


def test_of_three_one_comes_through():
    """At most one of three writers replaces the flag, also if two of them delete each other's claims."""
    told: list[str] = []
    works = [replacing(told, (name, b"1")) for name in (b"P", b"Q", b"R")]
    for disk in orders(works, lambda: Disk({FLAG: b"1"}), switches=2):
        check(disk, told, dict.fromkeys((b"P", b"Q", b"R"), b"1"))
        assert len(disk.changes) <= 1
        told.clear()
