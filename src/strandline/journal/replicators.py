"""The processes that replicate journals: starts one, and lists those that run."""

from __future__ import annotations

from collections.abc import Callable

from strandline.engine.connect import Databases
from strandline.engine.database import LeaseClock, Tables
from strandline.engine.lease_keeper import LeaseKeeper
from strandline.engine.process_leases import ProcessLeases
from strandline.engine.task_runner import InThisProcess, TaskRunner
from strandline.journal.replication_plan import ReplicationPlanner
from strandline.journal.replication_process import ReplicationProcess
from strandline.journal.settings import JournalSections
from strandline.journal.storage.port import JournalStore
from strandline.log.local import LocalLog
from strandline.log.range_source import RangeSource

_FILE = "replicators.db"
_LEASES = "strandline replicators"


class Replicators:
    """Their leases are in the database of the catalog, whatever the store of the journals is."""

    def __init__(
        self, log: LocalLog, databases: Databases, settings: JournalSections, store: Callable[[], JournalStore]
    ) -> None:
        self._log = log
        self._databases = databases
        self._settings = settings
        self._store = store
        self._leases: ProcessLeases | None = None

    def process(self, runner: TaskRunner | None = None) -> ReplicationProcess:
        """A process that replicates all topics, not started."""
        source = RangeSource(self._log.types, self._databases.data, self._settings.log)
        planner = ReplicationPlanner(source, self._store(), self._settings.journal.url)
        coordination, leases = self._settings.coordination, self._opened()
        keeper = LeaseKeeper(
            "the replicator's leases", leases, coordination.session_timeout_ms, coordination.stall_timeout_ms
        )
        return ReplicationProcess(self._log.raw.topics, planner, leases, keeper, runner or InThisProcess())

    def progress(self) -> dict[str, str]:
        """What each running process last reported, by the name of the process. Creates no file."""
        made = self._settings.catalog.url or (self._databases.data / _FILE).exists()
        return self._opened().owners() if made else {}

    def _opened(self) -> ProcessLeases:
        if self._leases is None:
            database = self._databases.get(self._settings.catalog.url, _FILE)
            tables = Tables(database, "replicators", "strandline.journal", "replicators.sql")
            lease_ms = self._settings.coordination.session_timeout_ms
            self._leases = ProcessLeases(tables, LeaseClock(database), lease_ms, _LEASES)
        return self._leases
