"""Copies SQLite's log into its file beside the writing, not within it.

SQLite by itself copies all of it within the commit that made the log too long, and nobody writes meanwhile. Here
another thread copies while the writer goes on, and the writer copies only what came since then: a log starts anew
only when it was copied to its end, and under load only the writer sees that moment.
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

# The second one copies what was written during the first, and leaves far less.
_PASSES = 2
# So long the writer waits for readers once a log is far too long.
_PATIENCE_MS = 100


@dataclass(frozen=True)
class Limits:
    """How far a log may grow.

    A long one is copied seldom, but growing is slower than starting anew. So it grows to `least_bytes`, and
    further only for large commits: for so many `commits` of them, up to `most_bytes`.
    """

    least_bytes: int = 4 << 20
    commits: int = 256
    most_bytes: int = 64 << 20

    def reached(self, grown_bytes: int, commits: int) -> bool:
        return grown_bytes >= (self.least_bytes if commits >= self.commits else self.most_bytes)


class Checkpoints:
    """Of the file of one writer."""

    def __init__(self, path: Path, executor: Executor, limits: Limits | None = None) -> None:
        self._path = path
        self._executor = executor
        self._limits = limits or Limits()
        self._from = 0  # where the log was when it was last copied; 0 when it was copied to its end
        self._commits = 0
        self._copying: Future[None] | None = None

    def committed(self, writer: sqlite.SqliteConnection, log_bytes: int) -> None:
        """For the writer's `Database`. What was committed stays so, whatever goes wrong here."""
        self._commits += 1
        if log_bytes < self._from:
            self._from = 0  # another process has copied it to its end, and it started anew
        if self._copying is not None and self._copying.done():
            self._copying = None
            self._commits = 0
            # A reader of old pages may be in the way: then the log grows on, and it is tried again later.
            self._from = 0 if _copy(writer, self._patience_ms(log_bytes)) else log_bytes
        elif self._copying is None and self._limits.reached(log_bytes - self._from, self._commits):
            with suppress(RuntimeError):  # it is shut down; closing the file copies all
                self._copying = self._executor.submit(self._copy)

    def _patience_ms(self, log_bytes: int) -> int:
        """Readers that follow one another leave no moment for a new start unless they are waited for."""
        return _PATIENCE_MS if log_bytes >= 2 * self._limits.most_bytes else 0

    def _copy(self) -> None:
        try:
            with closing(sqlite.SqliteConnection(self._path)) as database:
                for _ in range(_PASSES):
                    _copy(database)
                    # SQLite does this only at the end of the log, where the writer would wait for it.
                    OPEN.sync(self._path)
        except (NotFound, FileNotFoundError):
            pass  # the file was deleted
        except (StrandlineError, OSError) as error:
            log.warning("the log of %s is left to its writer to copy: %s", self._path.name, error)


def _copy(database: sqlite.SqliteConnection, patience_ms: int = 0) -> bool:
    """Whether all of the log is in the file now."""
    try:
        return database.checkpoint(patience_ms)
    except StrandlineError as error:
        log.warning("the log of %s could not be copied, and grows: %s", database.path.name, error)
        return False
