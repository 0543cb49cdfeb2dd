"""Messages at a moment in time, delivered under leases."""

from typing import TYPE_CHECKING

from strandline.lazy import lazy

if TYPE_CHECKING:
    from strandline.schedule.consumer import LeasedMessage, ScheduleConsumer
    from strandline.schedule.message import Message, moment_of
    from strandline.schedule.model import Lease, ListQuery, NewMessage, OwnerAct, Schedule
    from strandline.schedule.refusals import raise_for_failed
    from strandline.schedule.room import ScheduleMessages, Schedules
    from strandline.schedule.worker import GiveUp, Retry
else:
    # Every command reads the settings of the schedule, and few need more of it.
    _HOMES = {
        "consumer": ("LeasedMessage", "ScheduleConsumer"),
        "message": ("Message", "moment_of"),
        "model": ("Lease", "ListQuery", "NewMessage", "OwnerAct", "Schedule"),
        "refusals": ("raise_for_failed",),
        "room": ("ScheduleMessages", "Schedules"),
        "worker": ("GiveUp", "Retry"),
    }
    __getattr__, __dir__ = lazy(
        __name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}
    )

__all__ = [
    "GiveUp",
    "Lease",
    "LeasedMessage",
    "ListQuery",
    "Message",
    "NewMessage",
    "OwnerAct",
    "Retry",
    "Schedule",
    "ScheduleConsumer",
    "ScheduleMessages",
    "Schedules",
    "moment_of",
    "raise_for_failed",
]
