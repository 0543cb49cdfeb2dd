"""The relays of a platform: starts a process of one, and lists the processes that run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from strandline.coordination.settings import CoordinationSettings
from strandline.engine.connect import Databases
from strandline.engine.lease_keeper import LeaseKeeper
from strandline.engine.process_leases import ProcessLeases
from strandline.engine.task_runner import InThisProcess, TaskRunner
from strandline.errors import Invalid
from strandline.log.event_types import refuse_actions
from strandline.log.local import LocalLog
from strandline.log.range_source import RangeSource
from strandline.log.settings import LogSettings
from strandline.schedule.local import LocalSchedules
from strandline.schedule.model import Schedule
from strandline.schedule.relay.emptying import Emptied, Emptier, TargetLog
from strandline.schedule.relay.filling import FillPlanner
from strandline.schedule.relay.process import RelayProcess
from strandline.schedule.relay.rules import DueRule
from strandline.schedule.relay.values import RelayOptions, RelayRoute
from strandline.schedule.rules import MAX_MS
from strandline.schedule.settings import ScheduleSettings
from strandline.schedule.storage.connect import FILE

_AHEAD_MS = 86_400_000


class RelaySections(Protocol):
    """The sections that relays read."""

    @property
    def log(self) -> LogSettings: ...

    @property
    def schedule(self) -> ScheduleSettings: ...

    @property
    def coordination(self) -> CoordinationSettings: ...


@dataclass(frozen=True)
class Relays:
    log: LocalLog
    schedules: LocalSchedules
    databases: Databases
    settings: RelaySections

    def process(self, options: RelayOptions, runner: TaskRunner | None = None) -> RelayProcess:
        """A process of a relay, not started. Creates the schedule if it does not exist."""
        options.check()
        route = self._route(options)
        store = self.schedules.parts.store
        store.create(self._schedule(options))
        _check_delay(options, self.schedules.get(options.schedule))
        store.relays.begin(route)
        ranges = RangeSource(self.log.types, self.databases.data, self.settings.log)
        rule = DueRule(options.delay_ms, options.due_field)
        planner = FillPlanner(ranges, store.relays, route, rule, self.settings.schedule.url)
        emptied = Emptied()
        leases, coordination = self._processes(), self.settings.coordination
        return RelayProcess(
            options,
            self.schedules.parts,
            planner,
            runner or InThisProcess(),
            lambda: Emptier(TargetLog(self.log, ranges, options), store.relays, emptied),
            leases,
            LeaseKeeper(
                "the relay's lease", leases, coordination.session_timeout_ms, coordination.stall_timeout_ms
            ),
        )

    def _route(self, options: RelayOptions) -> RelayRoute:
        source, target = (self.log.types.entry(name) for name in (options.source, options.target))
        for entry in (source, target):
            refuse_actions(entry)
        return RelayRoute(options.schedule, options.source, source.id, options.target)

    def _schedule(self, options: RelayOptions) -> Schedule:
        """A schedule that accepts every event of the log."""
        usual = Schedule(options.schedule)
        return replace(
            usual,
            max_body_bytes=max(usual.max_body_bytes, self.settings.log.max_event_bytes),
            # The clock of the source may be ahead of the schedule's.
            max_future_ms=max(usual.max_future_ms, min(options.delay_ms + _AHEAD_MS, MAX_MS)),
        )

    def progress(self) -> dict[str, str]:
        """What each running process last reported, by the name of the process. Creates no file."""
        made = self.settings.schedule.url or (self.databases.data / FILE).exists()
        return self._processes().owners() if made else {}

    def _processes(self) -> ProcessLeases:
        lease_ms = self.settings.coordination.session_timeout_ms
        return self.schedules.parts.store.relays.processes(lease_ms)


def _check_delay(options: RelayOptions, schedule: Schedule) -> None:
    """Invalid if the schedule, which may have been made for shorter delays, would refuse every event."""
    if options.delay_ms > schedule.max_future_ms:
        raise Invalid(
            f"relay.delay_ms is {options.delay_ms}, but the schedule {schedule.name} accepts messages at most "
            f"{schedule.max_future_ms} ms ahead (max_future_ms); raise that limit, or use another schedule"
        )
