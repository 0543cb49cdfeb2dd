"""Opens the store of the schedules."""

from __future__ import annotations

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.schedule.settings import ScheduleSections
from strandline.schedule.storage.port import ScheduleStore
from strandline.schedule.storage.sql import SqlSchedules

_FILE = "schedule.db"


def connect(settings: ScheduleSections, databases: Databases, clock: Clock) -> ScheduleStore:
    """The time of the schedules is the server's; if they are in a file, that of the machine."""
    database = databases.get(settings.schedule.url, _FILE, fixed_plans=True)
    return SqlSchedules(database, None if database.shared else clock.now_ms)
