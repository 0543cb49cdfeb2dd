"""Opens the store of the schedules."""

from __future__ import annotations

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.schedule.storage.port import ScheduleStore
from strandline.schedule.storage.sql import SqlSchedules

#: The file of the schedules in the data directory, if they have no address.
FILE = "schedule.db"


def connect(url: str, databases: Databases, clock: Clock) -> ScheduleStore:
    """The time of the schedules is the server's; if they are in a file, that of the machine."""
    database = databases.get(url, FILE, fixed_plans=True)
    return SqlSchedules(database, None if database.shared else clock.now_ms)
