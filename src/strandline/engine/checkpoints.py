"""Checkpoints of SQLite's write-ahead log (WAL) that do not block the writer.

SQLite checkpoints within the commit that made the WAL too long, and blocks all writers. Here another thread copies
most of the WAL while the writer continues. The writer copies the rest: the WAL restarts from its beginning only
when it has been copied completely, and under load only the writer can reach that state.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from strandline.engine import sqlite
from strandline.engine.open_files import OPEN
from strandline.errors import NotFound, StrandlineError

log = logging.getLogger(__name__)

# The second pass copies what was written during the first one, and leaves far less to the writer.
_PASSES = 2
# How long the writer waits for readers when the WAL is far too long.
_PATIENCE_MS = 100


@dataclass(frozen=True)
class Limits:
    """How far the WAL may grow before it is checkpointed.

    A long WAL needs fewer checkpoints, but extending the file is slower than overwriting it. So it grows to
    `least_bytes`, and beyond that only until it has this many `commits`, up to `most_bytes`.
    """

    least_bytes: int = 4 << 20
    commits: int = 256
    most_bytes: int = 64 << 20

    def reached(self, grown_bytes: int, commits: int) -> bool:
        return grown_bytes >= (self.least_bytes if commits >= self.commits else self.most_bytes)


class Checkpoints:
    """The checkpoints of one database file that has one writer in this process."""

    def __init__(self, path: Path, executor: Executor, limits: Limits | None = None) -> None:
        self._path = path
        self._executor = executor
        self._limits = limits or Limits()
        self._from = 0  # the length of the WAL after the last incomplete checkpoint; 0 after a complete one
        self._commits = 0
        self._copying: Future[None] | None = None

    def committed(self, writer: sqlite.SqliteConnection, log_bytes: int) -> None:
        """The writer's connection calls this after each commit. An error here does not affect the commit."""
        self._commits += 1
        if self._copying is None and self._from <= log_bytes < self._from + self._limits.least_bytes:
            return  # after most commits
        if log_bytes < self._from:
            self._from = 0  # another process has checkpointed it completely, and the WAL restarted
        if self._copying is not None and self._copying.done():
            self._copying = None
            self._commits = 0
            # A reader of old pages can prevent a complete checkpoint: the WAL grows, and a later one is tried.
            # Overlapping readers prevent a restart of the WAL as well, unless the writer waits for them.
            patience_ms = _PATIENCE_MS if log_bytes >= 2 * self._limits.most_bytes else 0
            self._from = 0 if _copy(writer, patience_ms) else log_bytes
        elif self._copying is None and self._limits.reached(log_bytes - self._from, self._commits):
            with suppress(RuntimeError):  # the executor is shut down; closing the file checkpoints it
                self._copying = self._executor.submit(self._copy)

    def _copy(self) -> None:
        try:
            with closing(sqlite.SqliteConnection(self._path)) as database:
                for _ in range(_PASSES):
                    _copy(database)
                    # SQLite flushes only after a complete checkpoint, and then the writer would wait for it.
                    OPEN.sync(self._path)
        except (NotFound, FileNotFoundError):
            pass  # the file was deleted
        except (StrandlineError, OSError) as error:
            log.warning("the checkpoint of %s failed; the writer will retry it: %s", self._path.name, error)


def _copy(database: sqlite.SqliteConnection, patience_ms: int = 0) -> bool:
    """Checkpoint; whether the WAL is now copied completely."""
    try:
        return database.checkpoint(patience_ms)
    except StrandlineError as error:
        log.warning("the checkpoint of %s failed; its WAL grows: %s", database.path.name, error)
        return False
