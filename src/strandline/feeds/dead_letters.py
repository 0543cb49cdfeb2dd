"""Operations that failed: those that wait for a retry, and the dead letters, which were refused or given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from strandline.clock import Clock
from strandline.engine.database import Database, Tables, Transaction
from strandline.feeds import operation_log
from strandline.feeds.model import DeadOperation, Operation


class WaitingOperation(NamedTuple):
    """An operation that waits for a retry, and why it failed."""

    number: int
    operation: Operation
    reason: str


class DeadOperations:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._tables = Tables(database, "dead letters of feeds", "strandline.feeds", "dead_letters.sql")
        self._clock = clock

    def add(self, operation: Operation, reason: str) -> None:
        self._tables.store("add", **self._letter(operation, reason))

    def _letter(self, operation: Operation, reason: str) -> dict[str, Any]:
        return {
            "failed_ms": self._clock.now_ms(),
            "kind": operation_log.name_of(operation),
            "reason": _text(reason),
            "operation": _encoded(operation),
        }

    def after(self, number: int, limit: int) -> list[DeadOperation]:
        """Oldest first."""
        return [
            DeadOperation(found, failed_ms, reason, operation_log.decoded(bytes(event)))
            for found, failed_ms, reason, event in self._tables.fetch("after", after=number, limit=limit)
        ]

    def counts(self) -> dict[str, int]:
        """How many there are of each kind of operation."""
        return dict(self._tables.fetch("counts"))

    # -- operations that wait for a retry

    def wait(self, operation: Operation, reason: str, limit_ms: int) -> int:
        """Keep an operation that this process retries for `limit_ms`; returns its number. Durable."""
        until_ms = self._clock.now_ms() + limit_ms
        values = {"until_ms": until_ms, "reason": _text(reason), "operation": _encoded(operation)}
        ((number,),) = self._tables.store("wait", **values)
        return int(number)

    def settle(self, numbers: Sequence[int]) -> None:
        """Forget operations that were applied."""
        self._tables.transaction(lambda own: [own.run("settle", number=number) for number in numbers])

    def give_up(self, number: int, operation: Operation, reason: str) -> None:
        """Make a dead letter of an operation that waits, unless another process has done so."""

        def work(own: Transaction) -> None:
            if own.run("settle", number=number):
                own.run("add", **self._letter(operation, reason))

        self._tables.transaction(work)

    def overdue(self, limit: int) -> list[WaitingOperation]:
        """The operations of killed processes, oldest first."""
        rows = self._tables.fetch("overdue", now_ms=self._clock.now_ms(), limit=limit)
        return [
            WaitingOperation(number, operation_log.decoded(bytes(event)), reason) for number, reason, event in rows
        ]


def _encoded(operation: Operation) -> bytes:
    return msgspec.json.encode(operation_log.recorded(operation))


def _text(reason: str) -> str:
    return reason.replace("\0", "\ufffd")
