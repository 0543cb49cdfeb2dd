"""Embedded coordination: one SQLite file that the processes of a machine share.

A session is a row with an expiry on the machine's boot clock; a heartbeat thread extends it. Reads ignore expired
sessions, and writes delete them. The data need not survive a power failure, because all sessions and all processes
that know a version end with it. So commits do not wait for the disk.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from strandline.clock import boot_id, boot_ms
from strandline.coordination.lease import Beat, Holdings
from strandline.coordination.port import Coordination
from strandline.engine import sql, sqlite
from strandline.engine.database import Tables
from strandline.engine.heartbeat import Heartbeat
from strandline.engine.sqlite_database import SqliteDatabase
from strandline.engine.watcher import Watcher
from strandline.errors import Conflict, LeaseLost, OutcomeUnknown, StrandlineError, Unavailable

log = logging.getLogger(__name__)

_SQL = sql.load("strandline.coordination", "coordination.sql", "sqlite")
# Measured: a poll costs up to 0.2 ms of CPU time, nearly all of it for waking up the thread.
_POLL_SECONDS, _QUICK_POLL_SECONDS = 0.03, 0.005
_T = TypeVar("_T")


class SqliteCoordination(Coordination):
    def __init__(self, path: Path, session_timeout_ms: int = 6_000) -> None:
        self._lease_ms = session_timeout_ms
        self._boot = boot_id()
        self._db = _open(path)
        # Reads never wait for a commit, and `data_version` also changes with the commits of this process.
        self._reader = sqlite.SqliteConnection(path)
        self._state = _VisibleState(self._reader, self._boot)
        self._beat: Beat | None = None
        self._holdings = Holdings()
        self._node: str | None = None
        # Statements that failed but must take effect; the next transaction runs them first.
        self._owed: list[tuple[str, tuple[Any, ...]]] = []
        self._renew()
        self._watcher = Watcher(self._versions, _POLL_SECONDS, _QUICK_POLL_SECONDS)
        self._heartbeat = Heartbeat("renewing the coordination session", self._renew, session_timeout_ms)
        self._heartbeat.start()

    def _renew(self) -> None:
        self._within_session(lambda _db, _session: None)

    def _within_session(self, work: Callable[[sqlite.SqliteConnection, str], _T]) -> _T:
        """Run `work` in a transaction that also extends the session, or begins a new one if it has expired."""
        with self._db:
            before, sent_ms = self._beat, boot_ms()
            try:
                with self._db.transaction() as db:
                    for statement, values in self._owed:
                        db.execute(statement, values)
                    session = self._extend(db, before, sent_ms)
                    result = work(db, session)
            except OutcomeUnknown:
                self._start_over(before)
                raise
            self._owed.clear()
            if before and session == before.session and boot_ms() >= before.sent_ms + before.lease_ms:
                # It expired while the transaction was open. Others saw it vanish, so it must not reappear.
                self._start_over(before)
                raise Unavailable("the coordination session expired during the call; call again", retry_after=0.1)
            self._beat = Beat(session, sent_ms, self._lease_ms)
            return result

    def _extend(self, db: sqlite.SqliteConnection, beat: Beat | None, sent_ms: int) -> str:
        db.execute(_SQL["remove_dead"], (self._boot, boot_ms()))
        if beat and db.execute(_SQL["extend"], (sent_ms + self._lease_ms, beat.session)):
            return beat.session
        session = uuid.uuid4().hex
        db.execute(_SQL["begin"], (session, self._boot, sent_ms + self._lease_ms))
        return session

    def _start_over(self, beat: Beat | None) -> None:
        self._beat = None
        if beat:
            self._owed.append((_SQL["end"], (beat.session,)))

    def join(self, node: str, value: str) -> None:
        def work(db: sqlite.SqliteConnection, session: str) -> str:
            if self._node not in {None, node} and self._holdings.session_of(f"nodes/{self._node}") == session:
                raise Conflict(f"this process is already a member, as {self._node}")
            db.execute(_SQL["join"], (node, session, value))
            db.execute(_SQL["changed"])
            return session

        with self._db:
            session = self._within_session(work)
            self._holdings.drop(f"nodes/{self._node}")
            self._holdings.take(f"nodes/{node}", session)
            self._node = node
        self._watcher.wake()

    def update(self, value: str) -> None:
        self._change(f"nodes/{self._node}", "update", value, self._node)

    def relock(self, name: str, value: str) -> None:
        self._change(f"locked_et/{name}", "relock", value, name)

    def _change(self, thing: str, statement: str, value: str, key: str | None) -> None:
        def work(db: sqlite.SqliteConnection, session: str) -> None:
            if self._holdings.session_of(thing) != session or not db.execute(
                _SQL[statement], (value, key, session)
            ):
                raise LeaseLost(f"this session does not hold {thing} any more")
            db.execute(_SQL["changed"])

        self._within_session(work)
        self._watcher.wake()

    def members(self) -> dict[str, str]:
        return dict(self._reader.execute(_SQL["members"], (self._boot, boot_ms())))

    def version(self) -> int:
        return int(self._reader.execute(_SQL["version"])[0][0])

    def bump(self) -> int:
        with self._db.transaction() as db:
            version = int(db.execute(_SQL["bump"])[0][0])
        self._watcher.wake()
        return version

    def lock(self, name: str, value: str) -> bool:
        def work(db: sqlite.SqliteConnection, session: str) -> str | None:
            if not db.execute(_SQL["lock"], (name, session, value)):
                return None
            db.execute(_SQL["changed"])
            return session

        with self._db:
            session = self._within_session(work)
            if session:
                self._holdings.take(f"locked_et/{name}", session)
        self._watcher.wake()
        return session is not None

    def unlock(self, name: str) -> None:
        with self._db:
            session = self._holdings.session_of(f"locked_et/{name}")
            self._holdings.drop(f"locked_et/{name}")
            if session is None:
                return
            self._owed += [(_SQL["unlock"], (name, session)), (_SQL["changed"], ())]
            try:
                self._renew()
            except StrandlineError as error:
                log.warning("the lock on %s will be released with the next heartbeat: %s", name, error)
        self._watcher.wake()

    def locks(self) -> dict[str, str]:
        return dict(self._reader.execute(_SQL["locks"], (self._boot, boot_ms())))

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._watcher.watch("", callback)

    def _versions(self, keys: Sequence[str]) -> dict[str, object]:
        try:
            seen = self._state.read()
        except StrandlineError as error:
            seen = error.code  # `sure` can change while the file cannot be read
        return dict.fromkeys(keys, (seen, self.sure()))

    def sure(self) -> bool:
        return self._holdings.sure(self._beat)

    def close(self) -> None:
        self._heartbeat.stop()
        self._watcher.close()
        beat, self._beat = self._beat, None
        try:
            if beat:
                self._db.execute(_SQL["end"], (beat.session,))
        except StrandlineError as error:
            log.warning("could not end the coordination session; it expires by itself: %s", error)
        finally:
            self._reader.close()
            self._db.close()


class _VisibleState:
    """What other processes see, as a value to compare; queried after a commit or an expiry. Not thread-safe."""

    def __init__(self, reader: sqlite.SqliteConnection, boot: str) -> None:
        self._reader = reader
        self._boot = boot
        self._data_version = -1
        self._next_expiry_ms = 0
        self._seen: object = None

    def read(self) -> object:
        data_version, now_ms = self._reader.data_version(), boot_ms()
        if data_version != self._data_version or now_ms >= self._next_expiry_ms:
            rows = self._reader.execute(_SQL["visible_state"], (self._boot, now_ms))
            sessions = [(session, expires_ms) for _, session, expires_ms in rows if session]
            self._next_expiry_ms = min((expires_ms for _, expires_ms in sessions), default=1 << 62)
            self._seen = (rows[0][0], [session for session, _ in sessions])
            self._data_version = data_version
        return self._seen


def _open(path: Path) -> sqlite.SqliteConnection:
    with closing(SqliteDatabase(path)) as database:
        Tables(database, "coordination", "strandline.coordination", "coordination.sql")
    connection = sqlite.SqliteConnection(path)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection
