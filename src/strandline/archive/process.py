"""One process of the archive: leases its share of the event types and makes steps for each of them in a loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from strandline.archive import readiness
from strandline.archive.archiver import Archiver, Report
from strandline.archive.ledger import Ledger
from strandline.archive.model import Term
from strandline.archive.propagator import Propagator
from strandline.archive.settings import ArchiveSections
from strandline.clock import to_rfc3339
from strandline.engine.lease_keeper import LeaseKeeper
from strandline.errors import LeaseLost, NotFound, StrandlineError, Unavailable
from strandline.progress import JobProgress, OnProgress

log = logging.getLogger(__name__)

_AT_ONCE = 8
_PROPAGATE_SECONDS = 10.0
_RETRY_SECONDS = 5.0
# No event type can have this name.
_PROPAGATION = "propagation of flags"


class ArchiveProcess:
    """`event_types` gives the creation time of each event type to archive, 0 if it does not exist yet."""

    def __init__(
        self,
        settings: ArchiveSections,
        ledger: Ledger,
        propagator: Propagator,
        event_types: Callable[[], Mapping[str, int]],
        archiver: Callable[[str], Archiver],
    ) -> None:
        self._settings = settings.archive
        self._lease_ms = settings.coordination.session_timeout_ms
        self._ledger = ledger
        self._propagator = propagator
        self._event_types = event_types
        self._archiver = archiver
        coordination = settings.coordination
        self._keeper = LeaseKeeper(
            "the archive's leases", ledger.leases, coordination.session_timeout_ms, coordination.stall_timeout_ms
        )
        self._archivers: dict[str, Archiver] = {}
        self._wait_until: dict[str, float] = {}
        self._propagated = float("-inf")
        self._first_error: Exception | None = None
        self._unfinished: set[str] = set()

    @property
    def owner(self) -> str:
        return self._keeper.owner

    def run(self, stop: threading.Event, on_progress: OnProgress = lambda _: None) -> None:
        """Archive until `stop` is set, then publish what was collected. Errors are logged and retried."""
        with self._keeper.alive():
            while not stop.is_set():
                try:
                    self._tick(on_progress)
                except StrandlineError as error:
                    log.warning("the ledger is not available; retrying: %s", error.detail)
                stop.wait(self._settings.interval_ms / 1000)
            self._stop(self._ledger.terms(), on_progress)

    def _tick(self, on_progress: OnProgress) -> None:
        configured = self._event_types()
        terms = self._terms(configured)
        mine = self._share(self._due_names(configured, terms), terms)
        self._run_all(mine, lambda archiver: archiver.step(terms), on_progress)
        self._propagate(self._ledger.terms())  # the steps may have added hours

    def once(self, on_progress: OnProgress = lambda _: None) -> None:
        """Archive what the log holds now and flag the complete hours. The first error is raised at the end."""
        with self._keeper.alive():
            configured = self._event_types()
            terms = self._terms(configured)
            names = self._take_all(self._due_names(configured, terms))
            self._run_all(names, lambda archiver: _catch_up(archiver, terms), on_progress)
            self._stop(terms, on_progress)
            self._propagated = float("-inf")
            self._propagate(self._ledger.terms())  # the steps may have added hours
        if self._first_error is not None:
            raise self._first_error

    # -- leases

    def _terms(self, configured: Mapping[str, int]) -> list[Term]:
        """All terms, after opening one for every event type that is newly configured."""
        terms = self._ledger.terms()
        now_ms = self._ledger.now_ms()
        known = {term.event_type for term in terms if term.to_ms is None}
        new = {name: made_ms for name, made_ms in configured.items() if name not in known}
        for name, made_ms in new.items():
            ends = [term.to_ms for term in terms if term.event_type == name and term.to_ms is not None]
            self._ledger.open_term(
                name, readiness.first_hour(now_ms, self._settings.look_back_hours, made_ms, *ends)
            )
        return self._ledger.terms() if new else terms

    def _due_names(self, configured: Mapping[str, int], terms: Sequence[Term]) -> list[str]:
        """Event types that are configured here, or retired with hours that are not flagged yet."""
        now_ms = self._ledger.now_ms()
        retired = {term.event_type for term in terms} - {term.event_type for term in terms if term.to_ms is None}
        self._unfinished = {name for name in retired if self._is_unfinished(name, terms, now_ms)}
        return sorted({*configured, *self._unfinished})

    def _is_unfinished(self, name: str, terms: Sequence[Term], now_ms: int) -> bool:
        """Whether hours have no flag, or a process was killed before it wrote what it had decided."""
        hours = self._ledger.hours
        if self._ledger.publishing(name) or hours.unwritten(name):
            return True
        standing = self._ledger.standing(name)
        if standing is None:
            return False
        own = [term for term in terms if term.event_type == name]
        filled = [hour.hour_ms for hour in hours.with_data(name)]
        return bool(readiness.all_due(own, standing.flagged_ms, filled, now_ms))

    def _share(self, names: Sequence[str], terms: Sequence[Term]) -> list[str]:
        """Lease a fair share of the event types, preferring those that this process already has."""
        owners = self._ledger.leases.owners()
        if self.owner not in owners:  # its leases expired while it was paused or had stalled
            if owners and self._keeper.stalled:  # another process does the work, as long as it lives
                for name in [*self._archivers]:
                    self._drop(name)
                return []
            self._keeper.register()
        fair = -(-len(names) // len({*owners, self.owner}))
        mine: list[str] = []
        for name in sorted(names, key=lambda name: name not in self._archivers):
            if len(mine) < fair and self._ledger.leases.take(self.owner, name):
                mine.append(name)
        for name in [name for name in self._archivers if name not in mine]:
            self._hand_over(name, terms)
        if not mine:
            self._keeper.worked()
        return mine

    def _take_all(self, names: Sequence[str]) -> list[str]:
        """Lease all event types, except those that another process renews. Waits for leases that expire."""
        deadline = time.monotonic() + 2 * self._lease_ms / 1000
        mine: list[str] = []
        missing = [*names]
        while missing:
            mine += [name for name in missing if self._ledger.leases.take(self.owner, name)]
            missing = [name for name in names if name not in mine]
            if missing and time.monotonic() > deadline:
                log.warning("another process archives %s; skipping", ", ".join(missing))
                break
            time.sleep(0.05 if missing else 0)
        return mine

    def _hand_over(self, name: str, terms: Sequence[Term]) -> None:
        self._run_one(name, lambda archiver: archiver.stop(terms))
        self._drop(name)
        self._keeper.meter.forget(name)
        self._ledger.leases.release(self.owner, name)

    # -- steps

    def _run_all(self, names: Sequence[str], act: Callable[[Archiver], Report], on_progress: OnProgress) -> None:
        due = [name for name in names if self._wait_until.get(name, 0) <= time.monotonic()]
        if due:
            with ThreadPoolExecutor(min(_AT_ONCE, len(due))) as pool:
                for report in pool.map(lambda name: self._run_one(name, act), due):
                    if report is not None:
                        self._keeper.worked()
                        on_progress(self._progress(report))

    def _progress(self, report: Report) -> JobProgress:
        flag = to_rfc3339(report.flagged_ms) if report.flagged_ms >= 0 else None
        return self._keeper.meter.measure(
            report.event_type, report.rows, report.lag, shift=report.shift, last_flag=flag
        )

    def _run_one(self, name: str, act: Callable[[Archiver], Report]) -> Report | None:
        """Act on one event type. Errors are handled here, so that they do not affect the other event types."""
        try:
            archiver = self._archivers.get(name)
            if archiver is None:
                archiver = self._archiver(name)
                if not self._start(name, archiver):
                    return None
                self._archivers[name] = archiver
            return act(archiver)
        except LeaseLost as error:
            log.info("%s", error.detail)
            self._give_up(name, 0)
        except Unavailable as error:
            log.warning("archiving %s failed; retrying: %s", name, error.detail)
            self._give_up(name, error.retry_after, error)
        except StrandlineError as error:
            log.warning("archiving %s failed; starting again: %s", name, error.detail)
            self._give_up(name, _RETRY_SECONDS, error)
        except Exception as error:
            log.exception("archiving %s failed; starting again", name)
            self._give_up(name, _RETRY_SECONDS, error)
        return None

    def _start(self, name: str, archiver: Archiver) -> bool:
        """Whether the archiver can make steps. A retired event type that was deleted is only finished."""
        try:
            archiver.start()
        except NotFound:
            if name not in self._unfinished:
                raise
            archiver.finish()
            self._wait_until[name] = time.monotonic() + _RETRY_SECONDS
            return False
        return True

    def _give_up(self, name: str, seconds: float, error: Exception | None = None) -> None:
        self._first_error = self._first_error or error
        self._wait_until[name] = time.monotonic() + seconds
        archiver = self._archivers.get(name)
        # After Unavailable the next attempt can continue with what was collected.
        if archiver is not None and not (archiver.started and isinstance(error, Unavailable)):
            self._drop(name)

    def _drop(self, name: str) -> None:
        archiver = self._archivers.pop(name, None)
        if archiver is not None:
            archiver.abort()

    def _stop(self, terms: Sequence[Term], on_progress: OnProgress) -> None:
        self._wait_until.clear()
        self._run_all([*self._archivers], lambda archiver: archiver.stop(terms), on_progress)
        for name in [*self._archivers]:
            self._drop(name)

    def _propagate(self, terms: Sequence[Term]) -> None:
        if time.monotonic() - self._propagated < _PROPAGATE_SECONDS:
            return
        # One propagator at a time is enough: a second one would find the same flags.
        if self._ledger.leases.take(self.owner, _PROPAGATION):
            try:
                self._propagator.run(terms, repair=self._propagated < 0)
            finally:
                self._ledger.leases.release(self.owner, _PROPAGATION)
            self._propagated = time.monotonic()


def _catch_up(archiver: Archiver, terms: Sequence[Term]) -> Report:
    """Archive up to the end of the log at the first step. Events published later are left for the next run."""
    report = archiver.step(terms, everything=True)
    goal = report.rows + sum(report.lag.values())
    while not report.caught_up and report.rows < goal:
        report = archiver.step(terms, everything=True)
    return report
