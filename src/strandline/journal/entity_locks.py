"""Locks of journals on adopted topics, whose appends are checked before they are written."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.engine.connect import Databases
from strandline.engine.database import LeaseClock, Tables
from strandline.errors import OutcomeUnknown, StrandlineError, Unavailable

log = logging.getLogger(__name__)

_FILE = "journal_locks.db"
_PATIENCE_SECONDS = 5.0
_POLL_SECONDS = 0.005
_MARGIN_MS = 10_000


class EntityLocks:
    """The locks are in the database of the catalog, which all nodes share.

    The lock of a node that was killed expires. That takes longer than a write may take, so that the next owner
    finds in the log what the last one wrote.
    """

    def __init__(self, databases: Databases, catalog_url: str, write_ms: int) -> None:
        self._databases = databases
        self._url = catalog_url
        self._lease_ms = write_ms + _MARGIN_MS
        self._lock = threading.Lock()
        self._opened: tuple[Tables, LeaseClock] | None = None

    @contextmanager
    def held(self, topic: str, entity: str) -> Iterator[None]:
        """Unavailable if another writer keeps the lock for some seconds."""
        name = f"{topic}/{hashlib.blake2b(entity.encode(), digest_size=16).hexdigest()}"
        owner = uuid.uuid4().hex
        self._take(name, owner, entity)
        try:
            yield
        except OutcomeUnknown:
            raise  # what was sent may be written later: the lock stays until it expires
        except BaseException:
            self._release(name, owner)
            raise
        self._release(name, owner)

    def _take(self, name: str, owner: str, entity: str) -> None:
        tables, clock = self._open()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        try:
            while not tables.store("take", name=name, owner=owner, lease_ms=self._lease_ms, **clock.parameters()):
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"another writer has the journal {entity!r:.80}, or was stopped while it wrote; try again",
                        retry_after=1,
                    )
                time.sleep(_POLL_SECONDS)
        except OutcomeUnknown as error:  # nothing is written to the journal yet
            raise Unavailable(f"the journal {entity!r:.80} could not be locked: {error.detail}") from error

    def _release(self, name: str, owner: str) -> None:
        try:
            self._open()[0].store("release", name=name, owner=owner)
        except StrandlineError as error:
            log.warning("the lock of a journal stays until it expires: %s", error.detail)

    def _open(self) -> tuple[Tables, LeaseClock]:
        with self._lock:
            if self._opened is None:
                database = self._databases.get(self._url, _FILE)
                tables = Tables(database, "journal locks", "strandline.journal", "locks.sql")
                self._opened = tables, LeaseClock(database)
            return self._opened
