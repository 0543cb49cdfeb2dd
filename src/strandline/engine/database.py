"""A SQL database as the rooms' adapters see it: SQLite and PostgreSQL behind one small contract.

An adapter holds a `Tables`: the tables of its room in a database, with its statements by name. Which dialect the
database speaks is decided in the room's `.sql` file alone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from strandline.engine import sql
from strandline.engine.layouts import migrate
from strandline.errors import StrandlineError

_T = TypeVar("_T")
Rows = list[tuple[Any, ...]]
Values = Mapping[str, Any]


class Session(Protocol):
    """One transaction, as the work inside it sees it."""

    def execute(self, statement: str, values: Values = ...) -> Rows: ...

    def execute_many(self, statement: str, rows: Sequence[Values]) -> None: ...


class Database(ABC):
    """A database and the connections of this process to it. Thread-safe."""

    dialect: sql.Dialect
    #: How messages name it.
    where: str
    #: Whether processes on several machines can use it.
    shared: bool
    #: Which start of the machine lease times count from; empty where they are on the server's clock.
    boot: str

    @abstractmethod
    def fetch(self, statement: str, values: Values) -> Rows:
        """One statement that only reads; it sees all that was committed before. It never waits for a writer."""

    @abstractmethod
    def transaction(self, work: Callable[[Session], _T]) -> _T:
        """All of the work or nothing. It may be run again from its start: it must have no other effects.

        Every statement sees what was committed before it began. OutcomeUnknown if the commit may or may not have
        taken effect; after any other error nothing was stored.
        """

    @abstractmethod
    def data_version(self) -> int | None:
        """A number that changes with every commit of any process; None where that cannot be had cheaply."""

    @abstractmethod
    def lease_ms(self, session: Session | None = None) -> int | None:
        """The time on the clock that leases expire on. Without a session: None if only the server knows it."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""


class Transaction:
    """One transaction over a room's tables: its statements by name."""

    def __init__(self, session: Session, statements: Mapping[str, str]) -> None:
        self._statements = statements
        self.session = session

    def run(self, name: str, /, **values: Any) -> Rows:
        return self.session.execute(self._statements[name], values)

    def run_many(self, name: str, rows: Sequence[Values], /) -> None:
        if rows:
            self.session.execute_many(self._statements[name], rows)


class Tables:
    """The tables of one room in a database, made or brought to this release's layout when they are opened."""

    def __init__(self, database: Database, room: str, package: str, file: str) -> None:
        """Unavailable if a newer release made them."""
        self.database = database
        self._statements = sql.load(package, file, database.dialect)
        migrate(database, room, self._statements)

    def fetch(self, name: str, /, **values: Any) -> Rows:
        return self.database.fetch(self._statements[name], values)

    def transaction(self, work: Callable[[Transaction], _T]) -> _T:
        return self.database.transaction(lambda session: work(Transaction(session, self._statements)))


class LeaseClock:
    """The clock that leases in a database expire on, or a test's own."""

    def __init__(self, database: Database, now: Callable[[], int] | None = None) -> None:
        self._database = database
        self._now = now
        self.boot = database.boot

    def now_ms(self, transaction: Transaction) -> int:
        found = self._now() if self._now else self._database.lease_ms(transaction.session)
        assert found is not None  # noqa: S101 - with a session every database knows the time
        return found

    def parameters(self) -> dict[str, Any]:
        """For a statement that compares with the clock by itself: `:boot` and `:now_ms`, which may be NULL."""
        return {"boot": self.boot, "now_ms": self._now() if self._now else self._database.lease_ms()}


class SharedLook:
    """Lets threads that ask the same question at once share one answer.

    An answer counts for every thread that came before it was looked for. That includes errors: each of them may
    take seconds, and threads that waited for each other's would wait for the sum.
    """

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._looks = 0
        self._seen: int | StrandlineError = 0

    def __call__(self) -> int:
        before = self._looks
        with self._lock:
            if self._looks == before:
                self._looks += 1
                self._seen = self._safely()
            seen = self._seen
        if isinstance(seen, StrandlineError):
            raise seen
        return seen

    def _safely(self) -> int | StrandlineError:
        try:
            return self._look()
        except StrandlineError as error:
            return error


def is_plain(name: str) -> bool:
    """Whether a name from outside can be one of ours. Others may hold what PostgreSQL does not take as text."""
    return name.isascii() and "\0" not in name
