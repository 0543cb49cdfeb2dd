"""One process of a relay: fills the schedule and empties it, at the same time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline.engine.lease_keeper import LeaseKeeper
from strandline.engine.process_leases import ProcessLeases
from strandline.engine.task_runner import TaskRunner
from strandline.errors import (
    Conflict,
    Fenced,
    Gap,
    Invalid,
    NotFound,
    OutcomeUnknown,
    StrandlineError,
    Unavailable,
)
from strandline.log.range_source import LogSnapshot
from strandline.progress import OnProgress
from strandline.schedule.local import ScheduleParts
from strandline.schedule.relay.emptying import Emptier
from strandline.schedule.relay.filling import FillPlan, FillPlanner
from strandline.schedule.relay.values import FilledRange, RelayOptions
from strandline.schedule.rules import MAX_MS

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
# How old the shown number of waiting messages may be.
_SHOW_SECONDS = 1.0
# A retry does not help: the relay ends with the error.
_FATAL = (Gap, Invalid, NotFound)


class RelayProcess:
    def __init__(
        self,
        options: RelayOptions,
        parts: ScheduleParts,
        planner: FillPlanner,
        runner: TaskRunner,
        new_emptier: Callable[[], Emptier],
        leases: ProcessLeases,
        keeper: LeaseKeeper,
    ) -> None:
        self._options = options
        self._parts = parts
        self._planner = planner
        self._runner = runner
        self._new_emptier = new_emptier
        self._leases = leases
        self._keeper = keeper
        self._filled = FilledRange()
        self._emptier = new_emptier()
        self._shown_at = 0.0
        self._waiting = 0
        self._emptying_fails = False

    @property
    def owner(self) -> str:
        return self._keeper.owner

    def run(self, stop: threading.Event, on_progress: OnProgress = lambda _: None) -> None:
        """Relay until `stop` is set. While another process runs the same relay, wait to take its place."""
        with self._alive():
            while not stop.is_set():
                try:
                    if self._leases.take(self.owner, self._options.schedule):
                        self._relay(stop, on_progress)
                    else:
                        self._keeper.worked()
                except Fenced as error:
                    log.warning("another process has taken over the relay: %s", error.detail)
                except _FATAL:
                    raise
                except StrandlineError as error:
                    log.warning("the relay failed; retrying: %s", error.detail)
                stop.wait(_POLL_SECONDS)

    def once(self, on_progress: OnProgress = lambda _: None) -> None:
        """Fill what the source holds now, publish what is due then, and end.

        Conflict if another process runs the relay.
        """
        with self._alive():
            if not self._leases.take(self.owner, self._options.schedule):
                raise Conflict(f"another process runs the relay of {self._options.schedule}; stop it first")
            self._emptier = self._new_emptier()
            self._emptier.start()
            snapshot = self._planner.look()
            while self._fill(snapshot, on_progress):
                pass
            while self._may_lease() and self._emptier.step():
                self._show(snapshot, on_progress)
            self._show(snapshot, on_progress, last=True)

    # -- leases

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Renew the lease of this process while it works, and release it afterwards."""
        self._parts.broker.start()
        with self._keeper.alive():
            yield

    # -- the work

    def _relay(self, stop: threading.Event, on_progress: OnProgress) -> None:
        """Fill in this thread and empty in another one, until `stop` is set or one of them fails."""
        self._emptier = self._new_emptier()
        self._emptier.start()
        ended = threading.Event()
        failures: list[BaseException] = []

        def emptying() -> None:
            try:
                self._empty_until(lambda: stop.is_set() or ended.is_set())
            except BaseException as error:  # noqa: BLE001 - raised by the other thread
                failures.append(error)
            ended.set()

        thread = threading.Thread(target=emptying, name="strandline-relay", daemon=True)
        thread.start()
        try:
            while not (stop.is_set() or ended.is_set()):
                snapshot = self._planner.look()
                if not self._fill(snapshot, on_progress):
                    ended.wait(_POLL_SECONDS)
        finally:
            ended.set()
            thread.join()
        if failures:
            raise failures[0]

    def _empty_until(self, stopped: Callable[[], bool]) -> None:
        while not stopped():
            try:
                busy = self._may_lease() and self._emptier.step()
                self._emptying_fails = False
                if not busy:
                    time.sleep(self._idle_seconds())
            except (Unavailable, OutcomeUnknown, Conflict) as error:
                if isinstance(error, Fenced):
                    raise
                self._emptying_fails = True
                log.warning("emptying the schedule failed; retrying: %s", error.detail)
                time.sleep(_POLL_SECONDS)
                self._recover(stopped)

    def _recover(self, stopped: Callable[[], bool]) -> None:
        while not stopped():
            try:
                self._emptier.recover()
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("finishing the open record failed; retrying: %s", error.detail)
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _may_lease(self) -> bool:
        """Whether something is due, and the clock of this node can be trusted."""
        due = self._parts.store.due.next_due(self._options.schedule)
        return due.oldest_ms is not None and self._parts.broker.problem() is None

    def _idle_seconds(self) -> float:
        """Until the next message is due, or until another process may have created one."""
        due = self._parts.store.due.next_due(self._options.schedule)
        if due.oldest_ms is not None or due.next_ms is None:
            return _POLL_SECONDS / 10 if due.oldest_ms is not None else _POLL_SECONDS
        return min(_POLL_SECONDS, max(0.001, (due.next_ms - due.now_ms) / 1000))

    def _fill(self, snapshot: LogSnapshot, on_progress: OnProgress) -> bool:
        """Run a task for every partition that is behind. Returns whether there was one."""
        plan = self._planner.plan(snapshot)
        for result in self._runner.run([*plan.tasks.values()]) if plan.tasks else ():
            if isinstance(result, Conflict | OutcomeUnknown):  # the next plan starts from the stored positions
                log.info("the relay plans again: %s", result.detail)
            elif isinstance(result, StrandlineError):
                raise result
            else:
                records, dead = self._filled.records + result.records, self._filled.dead + result.dead
                self._filled = FilledRange(records, dead)
        if not self._emptying_fails:
            self._keeper.worked()
        self._show(snapshot, on_progress, plan)
        return bool(plan.tasks)

    def _show(
        self, snapshot: LogSnapshot, on_progress: OnProgress, plan: FillPlan | None = None, *, last: bool = False
    ) -> None:
        plan = self._planner.plan(snapshot) if plan is None or plan.tasks else plan
        if last or time.monotonic() - self._shown_at > _SHOW_SECONDS:
            self._shown_at = time.monotonic()
            now_ms = self._parts.store.now_ms()
            self._waiting = self._parts.store.messages.counts(self._options.schedule, now_ms, MAX_MS).total
        emptied = self._emptier.emptied
        on_progress(
            self._keeper.meter.measure(
                self._options.source,
                self._filled.records,
                plan.lag,
                worked=not self._emptying_fails,
                published=emptied.published,
                waiting=self._waiting,
                dead_letters=self._filled.dead + emptied.dead,
            )
        )
