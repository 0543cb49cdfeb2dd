"""One process of the fan-out: runs batch after batch while it has the lease."""

from __future__ import annotations

import logging
import threading
from typing import Any

from strandline.clock import Clock
from strandline.engine.lease_keeper import LeaseKeeper
from strandline.engine.process_leases import ProcessLeases
from strandline.errors import Conflict, Gap, Invalid, NotFound, StrandlineError
from strandline.feeds.fanout.batches import BatchDone, FanoutBatches, Looks
from strandline.feeds.fanout.book import FanoutBook
from strandline.feeds.fanout.delivery import FanoutPlace
from strandline.feeds.storage.port import FeedStore
from strandline.progress import OnProgress

log = logging.getLogger(__name__)

LEASE = "fanout"

_POLL_SECONDS = 0.2
# A retry does not help: the fan-out ends with the error.
_FATAL = (Gap, Invalid, NotFound)
_RENEWED_AT_ONCE = 500


class FanoutProcess:
    def __init__(
        self,
        place: FanoutPlace,
        batches: FanoutBatches,
        book: FanoutBook,
        store: FeedStore,
        leases: ProcessLeases,
        keeper: LeaseKeeper,
        clock: Clock,
    ) -> None:
        self._place = place
        self._batches = batches
        self._book = book
        self._store = store
        self._leases = leases
        self._keeper = keeper
        self._clock = clock
        self._records: dict[str, int] = {}
        self._entries = self._dead = 0

    @property
    def owner(self) -> str:
        return self._keeper.owner

    def run(self, stop: threading.Event, on_progress: OnProgress = lambda _: None) -> None:
        """Fan out until `stop` is set. While another process does, wait to take its place."""
        checked = False
        with self._keeper.alive():
            while not stop.is_set():
                busy = False
                try:
                    if self._leases.take(self.owner, LEASE):
                        if not checked:
                            self._warn()
                            checked = True
                        busy = self._step(self._batches.look(), on_progress)
                    self._keeper.worked()  # also while another process fans out
                except Conflict as error:
                    log.info("the fan-out is planned again: %s", error.detail)
                except _FATAL:
                    raise
                except StrandlineError as error:
                    log.warning("the fan-out failed; retrying: %s", error.detail)
                if not busy:
                    stop.wait(_POLL_SECONDS)

    def once(self, on_progress: OnProgress = lambda _: None) -> None:
        """Fan out what the log holds now, with all chunks, and end. Conflict if another process fans out."""
        with self._keeper.alive():
            if not self._leases.take(self.owner, LEASE):
                raise Conflict("another process runs the fan-out; stop it first")
            self._warn()
            looks = self._batches.look()
            while self._step(looks, on_progress):
                pass

    # -- the work

    def _step(self, looks: Looks, on_progress: OnProgress) -> bool:
        """Run a batch; False if there was nothing to do."""
        done = self._batches.step(looks)
        if done is not None:
            self._count(done)
        self._renew_authors()  # also if there is always more to do
        self._show(looks, on_progress)
        return done is not None

    def _count(self, done: BatchDone) -> None:
        for name, count in done.records.items():
            self._records[name] = self._records.get(name, 0) + count
        self._entries += done.entries
        self._dead += done.dead

    def _show(self, looks: Looks, on_progress: OnProgress) -> None:
        lag = self._batches.lag(looks)
        about: dict[str, Any] = {"entries": self._entries, "queued": lag.queued, "dead_letters": self._dead}
        for name, left in lag.records.items():
            on_progress(self._keeper.meter.measure(name, self._records.get(name, 0), left, **about))

    def _renew_authors(self) -> None:
        """Read feeds of authors from time to time, so that they do not expire: an unfollow needs their entries."""
        now_ms = self._clock.now_ms()
        authors = self._book.idle_authors(now_ms - self._place.settings.unread_ms // 3, _RENEWED_AT_ONCE)
        if authors:
            for answer in self._store.read([*map(self._place.options.recent_of, authors)], 0, 1):
                if answer.error is not None:
                    raise answer.error
            self._book.renewed(authors, now_ms)

    def _warn(self) -> None:
        """Warn if the store has lost posts that were fanned out."""
        behind = self._batches.behind()
        if behind:
            log.warning(
                "the store of the feeds has lost what was fanned out from %s: it was emptied, or restored from a "
                "snapshot; run the job `rebuild`",
                ", ".join(behind),
            )
