"""SQLite and PostgreSQL behind one small contract, for the adapters of the rooms.

An adapter holds a `Tables`: the tables of its room in a database, with its statements by name. Only the room's
`.sql` file depends on the dialect.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from strandline.engine import sql
from strandline.engine.layouts import migrate
from strandline.errors import StrandlineError

_T = TypeVar("_T")
Rows = list[tuple[Any, ...]]
Values = Mapping[str, Any]


class Session(Protocol):
    """Runs statements inside one transaction."""

    def execute(self, statement: str, values: Values = ...) -> Rows: ...

    def execute_many(self, statement: str, rows: Sequence[Values]) -> None: ...

    def load(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows. The statement is an INSERT with `?` on SQLite, a binary COPY on PostgreSQL."""

    def execute_each(self, statement: str, common: Values, columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Run a statement for every row, on PostgreSQL at once: there every column is an array."""


class Signals(Protocol):
    """Short texts between the processes that use a database. A text can get lost: these are only hints.

    One thread sends, and one receives. Both get Unavailable while there is no connection, and call again later.
    """

    def send(self, text: str) -> None:
        """Send a text of at most 7,000 ASCII characters to all processes, also to this one."""

    def receive(self, seconds: float) -> list[str]:
        """Texts that have arrived; waits for one. The first call, and each after an error, begins to listen."""

    def interrupt(self) -> None:
        """End a `receive` that waits; later ones do not wait."""

    def close(self) -> None:
        """Close the connections, which no thread uses any more."""


class Database(ABC):
    """A database and the connections of this process to it. Thread-safe."""

    dialect: sql.Dialect
    #: The name of the database in messages.
    where: str
    #: Whether processes on several machines can use it.
    shared: bool
    #: The machine start that lease times refer to; empty if leases expire on the server's clock.
    boot: str

    @abstractmethod
    def fetch(self, statement: str, values: Values) -> Rows:
        """Run one statement that only reads. It sees everything committed before, and never waits for a writer."""

    @abstractmethod
    def change(self, statement: str, values: Values) -> Rows:
        """Run one statement that changes rows, as a transaction of its own. It may be retried.

        OutcomeUnknown if the change may or may not have taken effect; after any other error nothing was stored.
        """

    @abstractmethod
    def transaction(self, work: Callable[[Session], _T]) -> _T:
        """Run `work` atomically. It may be retried from its start, so it must have no other effects.

        Every statement sees what was committed before it began. OutcomeUnknown if the commit may or may not have
        taken effect; after any other error nothing was stored.
        """

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Session]:
        """Statements that only read, and all see what the first one saw. Holds a connection until it ends.

        Other calls never wait for it. Unavailable if too many are open at the same time, or if a minute passes
        between two statements.
        """

    @abstractmethod
    def data_version(self) -> int | None:
        """A number that changes with every commit of any process; None if it would cost a round trip."""

    @abstractmethod
    def signals(self, channel: str) -> Signals | None:
        """Texts between processes, over connections of their own; None if the database has nothing like it."""

    @abstractmethod
    def lease_ms(self, session: Session | None = None) -> int | None:
        """The time on the clock that leases expire on. Without a session: None if it is the server's clock."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""


class Transaction:
    """Runs a room's statements by name inside one transaction."""

    def __init__(self, session: Session, statements: Mapping[str, str]) -> None:
        self._statements = statements
        self.session = session

    def run(self, name: str, /, **values: Any) -> Rows:
        return self.session.execute(self._statements[name], values)

    def run_many(self, name: str, rows: Sequence[Values], /) -> None:
        if rows:
            self.session.execute_many(self._statements[name], rows)

    def load(self, name: str, rows: Iterable[Sequence[Any]], /) -> None:
        self.session.load(self._statements[name], rows)

    def run_each(self, name: str, columns: Sequence[str], rows: Sequence[Any], /, **common: Any) -> None:
        if rows:
            self.session.execute_each(self._statements[name], common, columns, rows)


class Tables:
    """The tables of one room in a database; opening creates them or migrates them to this release's layout."""

    def __init__(self, database: Database, room: str, package: str, file: str) -> None:
        """Unavailable if a newer release created the tables."""
        self.database = database
        self._statements = sql.load(package, file, database.dialect)
        migrate(database, room, self._statements)

    def fetch(self, name: str, /, **values: Any) -> Rows:
        return self.database.fetch(self._statements[name], values)

    def store(self, name: str, /, **values: Any) -> Rows:
        """Run one statement that changes rows, as a transaction of its own."""
        return self.database.change(self._statements[name], values)

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Statements that only read and all see the same state."""
        with self.database.snapshot() as session:
            yield Transaction(session, self._statements)

    def transaction(self, work: Callable[[Transaction], _T]) -> _T:
        return self.database.transaction(lambda session: work(Transaction(session, self._statements)))

    def within(self, other: Transaction) -> Transaction:
        """These statements in a transaction that was begun with other tables of the same database."""
        return Transaction(other.session, self._statements)


class LeaseClock:
    """The clock that leases in a database expire on, or the clock of a test."""

    def __init__(self, database: Database, now: Callable[[], int] | None = None) -> None:
        self._database = database
        self._now = now
        self.boot = database.boot

    def now_ms(self, transaction: Transaction) -> int:
        found = self._now() if self._now else self._database.lease_ms(transaction.session)
        assert found is not None  # noqa: S101 - with a session every database knows the time
        return found

    def parameters(self) -> dict[str, Any]:
        """`:boot` and `:now_ms` for a statement; if `:now_ms` is NULL, the statement reads the server's clock."""
        return {"boot": self.boot, "now_ms": self._now() if self._now else self._database.lease_ms()}


class SharedQuery:
    """Lets concurrent threads share the result of one query.

    A result is valid for every thread that called before the query started. This includes errors: a query may take
    seconds to fail, and without sharing, each waiting thread would wait for its own failure after the others.
    """

    def __init__(self, query: Callable[[], int]) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._started = 0
        self._result: int | StrandlineError = 0

    def __call__(self) -> int:
        before = self._started
        with self._lock:
            if self._started == before:
                self._started += 1
                self._result = self._run()
            result = self._result
        if isinstance(result, StrandlineError):
            raise result
        return result

    def _run(self) -> int | StrandlineError:
        try:
            return self._query()
        except StrandlineError as error:
            return error


def is_plain(name: str) -> bool:
    """Whether a name from outside can be a stored one. Others may contain text that PostgreSQL does not accept."""
    return name.isascii() and "\0" not in name
