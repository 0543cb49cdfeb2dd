"""One process of the replication: takes its share of the topics and replicates them in a loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from strandline.engine.lease_keeper import LeaseKeeper
from strandline.engine.process_leases import ProcessLeases
from strandline.engine.task_runner import TaskRunner
from strandline.errors import Conflict, NotFound, OutcomeUnknown, StrandlineError, Unavailable
from strandline.journal.replication_plan import ReplicationPlanner, TopicPlan
from strandline.journal.replication_task import NOTHING, Replicated, ReplicationTask
from strandline.log.range_source import LogSnapshot
from strandline.log.raw import RawTopic
from strandline.progress import JobProgress, OnProgress

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_RETRY_SECONDS = 5.0
# The state of the store has changed or is unknown: the next plan starts from its pointers.
_PLAN_AGAIN = (Conflict, OutcomeUnknown)

_Place = tuple[str, int]


class ReplicationProcess:
    """`topics` lists the topics that exist now."""

    def __init__(
        self,
        topics: Callable[[], Sequence[RawTopic]],
        planner: ReplicationPlanner,
        leases: ProcessLeases,
        keeper: LeaseKeeper,
        runner: TaskRunner,
    ) -> None:
        self._topics = topics
        self._planner = planner
        self._leases = leases
        self._keeper = keeper
        self._runner = runner
        self._counts: dict[str, Replicated] = {}
        self._wait_until: dict[_Place, float] = {}
        self._first_error: StrandlineError | None = None
        self._retries = True

    @property
    def owner(self) -> str:
        return self._keeper.owner

    def run(self, stop: threading.Event, on_progress: OnProgress = lambda _: None) -> None:
        """Replicate until `stop` is set. Errors are logged and retried."""
        with self._keeper.alive():
            while not stop.is_set():
                try:
                    share = self._share()
                    busy = share is not None and self._step(share, on_progress)
                except StrandlineError as error:
                    log.warning("replicating failed; retrying: %s", error.detail)
                    busy = False
                if not busy:
                    stop.wait(_POLL_SECONDS)

    def once(self, on_progress: OnProgress = lambda _: None) -> None:
        """Replicate what the log holds now, without taking leases. The first error is raised at the end.

        Another process may replicate the same topics: the store accepts every batch only once.
        """
        self._retries = False
        with self._keeper.alive():
            looks = {topic: self._planner.look(topic) for topic in self._topics()}
            while self._step(looks, on_progress):
                pass
        if self._first_error is not None:
            raise self._first_error

    # -- leases

    def _share(self) -> dict[RawTopic, LogSnapshot] | None:
        """A fair share of the topics, preferring those that this process already has; None if it has stalled."""
        topics = self._topics()
        owners = self._leases.owners()
        if self.owner not in owners:  # its leases expired while it was paused or had stalled
            if owners and self._keeper.stalled:  # another process that is alive does the work
                return None
            self._keeper.register()
        fair = -(-len(topics) // len({*owners, self.owner}))
        mine: dict[RawTopic, LogSnapshot] = {}
        for topic in sorted(topics, key=lambda topic: topic.name not in self._counts):
            if len(mine) < fair and self._leases.take(self.owner, topic.name):
                with suppress(NotFound):  # deleted meanwhile
                    mine[topic] = self._planner.look(topic)
        self._hand_over({topic.name for topic in mine})
        return mine

    def _hand_over(self, kept: set[str]) -> None:
        for name in [name for name in self._counts if name not in kept]:
            del self._counts[name]
            self._keeper.meter.forget(name)
            self._leases.release(self.owner, name)

    # -- steps

    def _step(self, looks: dict[RawTopic, LogSnapshot], on_progress: OnProgress) -> bool:
        """Run a task for every partition that is behind. Returns whether there was one."""
        plans = {topic: self._planner.plan(topic, look) for topic, look in looks.items()}
        tasks: dict[_Place, ReplicationTask] = {}
        for topic, plan in plans.items():
            for partition, task in plan.tasks.items():
                place = (topic.name, partition)
                if self._wait_until.get(place, 0) > time.monotonic():
                    continue
                if isinstance(task, StrandlineError):
                    self._failed(place, task)
                else:
                    tasks[place] = task
        done = dict(zip(tasks, self._runner.run([*tasks.values()]), strict=True)) if tasks else {}
        caught_up = not any(plan.tasks for plan in plans.values())
        if caught_up or any(isinstance(result, Replicated) for result in done.values()):
            self._keeper.worked()
        for topic, plan in plans.items():
            on_progress(self._progress(topic, plan, done))
        return bool(tasks)

    def _progress(
        self, topic: RawTopic, plan: TopicPlan, done: dict[_Place, Replicated | StrandlineError]
    ) -> JobProgress:
        count = self._counts.get(topic.name, NOTHING)
        lag = dict(plan.lag)
        for (name, partition), result in done.items():
            if name != topic.name:
                continue
            if isinstance(result, Replicated):
                count += result
                lag[partition] = max(0, lag[partition] - result.records)
            else:
                self._failed((name, partition), result)
        self._counts[topic.name] = count
        own = [result for (name, _), result in done.items() if name == topic.name]
        worked = not plan.tasks or any(isinstance(result, Replicated) for result in own)
        details = {"dead_letters": count.dead, "skipped": count.skipped}
        return self._keeper.meter.measure(topic.name, count.records, lag, worked=worked, **details)

    def _failed(self, place: _Place, error: StrandlineError) -> None:
        name, partition = place
        if isinstance(error, _PLAN_AGAIN):
            log.info("partition %d of %s is planned again: %s", partition, name, error.detail)
            return
        self._first_error = self._first_error or error
        seconds = error.retry_after if isinstance(error, Unavailable) else _RETRY_SECONDS
        self._wait_until[place] = time.monotonic() + (seconds if self._retries else float("inf"))
        log.warning("partition %d of %s cannot be replicated: %s", partition, name, error.detail)
