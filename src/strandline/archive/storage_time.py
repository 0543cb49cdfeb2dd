"""The time of the storages, which limits the time of a driver: a clock that is ahead must not end hours early."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from strandline.archive.files import Files
from strandline.archive.layout import STAGING
from strandline.errors import StrandlineError

log = logging.getLogger(__name__)

# How often the clock of the files is read while it disagrees.
_PROBE_SECONDS = 10.0


class StorageTime:
    """What the clock of the file system says, and the newest time of publication in the log. Thread-safe.

    The file system's clock is read from the time of a new file, once, and again only while it is behind the
    driver's. Between two readings its time passes like that of `steady`, which is in seconds.
    """

    def __init__(self, files: Files, steady: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._steady = steady
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._ahead_ms = float("-inf")  # of `steady`; +inf if the file system tells no times
        self._newest_ms = -1
        self._told = False

    def limited(self, now_ms: int, grace_ms: int, newest_ms: Callable[[], int]) -> int:
        """`now_ms`, or the storages' time if that is more than the grace behind.

        `newest_ms` returns the newest time of publication of an event type. If records are newer than the file
        system's clock by more than the grace, that clock is behind, and limits nothing.
        """
        with self._lock:
            if now_ms <= self._files_ms() + grace_ms:
                return now_ms
            if self._steady() - self._read_at >= _PROBE_SECONDS:
                self._probe()
            files_ms = self._files_ms()
            if now_ms <= files_ms + grace_ms:
                self._told = False
                return now_ms
            self._newest_ms = max(self._newest_ms, newest_ms())
            if self._newest_ms > files_ms + grace_ms:
                return now_ms
            limit_ms = max(int(files_ms), self._newest_ms)
            self._tell(now_ms - limit_ms)
            return limit_ms

    def _files_ms(self) -> float:
        return self._steady() * 1000 + self._ahead_ms

    def _probe(self) -> None:
        path = f"{STAGING}/clock-{uuid.uuid4().hex}.part"
        self._files.create(path).close()
        found = self._files.modified_ms(path)
        with suppress(StrandlineError):  # an empty file is in nobody's way
            self._files.delete(path)
        self._read_at = self._steady()
        self._ahead_ms = float("inf") if found is None else found - self._read_at * 1000

    def _tell(self, ahead_ms: int) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "the clock of the archive's ledger is %d s ahead of the storage's, so hours are flagged by the "
                "storage's time; correct the clock",
                ahead_ms // 1000,
            )
