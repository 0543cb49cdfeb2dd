"""Where schedules and messages are stored: the port and its adapter."""

from strandline.schedule.storage.port import DueMessages, Messages, ScheduleStore, Sessions

__all__ = ["DueMessages", "Messages", "ScheduleStore", "Sessions"]
