"""What failed in a part of the store is retried, and given up with a reason."""

from __future__ import annotations

import pytest

from services import until
from strandline.errors import OutcomeUnknown, Unavailable
from strandline.feeds import retries
from strandline.feeds.model import AppendEntry, Applied, Entry, Operation, feeds_of
from strandline.feeds.retries import Retries

APPEND = AppendEntry(5, Entry(1), ("ada", "bob"))
DOWN = Unavailable("the shard is down")


class Store:
    """Fails for the feeds in `down`. It also stands in for the tables of what waits and of dead letters."""

    def __init__(self) -> None:
        self.down = {"ada", "bob"}
        self.applied: list[Operation] = []
        self.letters: list[tuple[Operation, str]] = []
        self.waiting: list[int] = []
        self.full = False

    def apply(self, operations) -> list[Applied]:
        self.applied += operations
        failed = [self.down & {*feeds_of(operation)} for operation in operations]
        return [Applied(0, dict.fromkeys(sorted(names), DOWN)) for names in failed]

    def wait(self, *_: object) -> int:
        self.waiting.append(len(self.waiting))
        return self.waiting[-1]

    def settle(self, numbers: list[int]) -> None:
        self.waiting = [number for number in self.waiting if number not in numbers]

    def give_up(self, number: int, operation: Operation, reason: str) -> None:
        if self.full:
            raise OutcomeUnknown("no answer")
        self.settle([number])
        self.add(operation, reason)

    def add(self, operation: Operation, reason: str) -> None:
        self.letters.append((operation, reason))

    def retries(self, limit_ms: int) -> Retries:
        return Retries(self.apply, lambda: self, limit_ms)


@pytest.fixture
def store(monkeypatch) -> Store:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(retries, "_LONGEST_PAUSE_S", 0.002)
    return Store()


def test_only_the_feeds_that_failed_are_retried_until_they_succeed(store):
    kept = store.retries(60_000)
    store.down = {"bob"}
    kept.keep(APPEND, DOWN)
    until(lambda: len(store.applied) > 2, "retries")
    store.down = set()
    until(lambda: not kept.waiting, "success")
    kept.close()
    assert {feeds_of(operation) for operation in store.applied[1:]} == {("bob",)}
    assert {operation.time for operation in store.applied} == {5}
    assert (store.letters, store.waiting) == ([], [])


def test_what_fails_for_too_long_is_a_dead_letter(store):
    kept = store.retries(5)
    kept.keep(APPEND, DOWN)
    until(lambda: store.letters, "a dead letter")
    assert store.letters == [(APPEND, "it was retried without success: the shard is down")]
    until(lambda: not kept.waiting, "nothing to wait for")
    kept.close()


def test_what_waits_when_the_process_ends_is_a_dead_letter(store):
    kept = store.retries(60_000)
    kept.keep(APPEND, DOWN)
    kept.close()
    assert store.letters == [(APPEND, "the process ended: the shard is down")]
    kept.keep(APPEND, DOWN)
    assert len(store.letters) == 2


def test_it_is_kept_while_no_dead_letter_can_be_written(store):
    store.full = True
    kept = store.retries(1)
    kept.keep(APPEND, DOWN)
    until(lambda: len(store.applied) > 3, "retries")
    store.full = False
    until(lambda: store.letters, "a dead letter")
    kept.close()


def test_too_many_are_given_up_at_once(store, monkeypatch):
    monkeypatch.setattr(retries, "_MOST_KEPT", 0)
    kept = store.retries(60_000)
    kept.keep(APPEND, DOWN)
    assert store.letters == [(APPEND, "too many operations wait for a retry: the shard is down")]
    kept.close()
