"""The schedule room, in process and over HTTP: every test in this directory that asks for `rooms` runs on both."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from strandline import Schedule
from strandline.client import Remote
from strandline.platform import Platform
from strandline.schedule import ScheduleMessages

_numbers = itertools.count(1)


@pytest.fixture
def make(rooms: Platform | Remote) -> Callable[..., ScheduleMessages]:
    """A function that creates a schedule which no other test uses."""

    def one(**settings: int) -> ScheduleMessages:
        name = f"schedule-{next(_numbers)}"
        rooms.schedules.create(Schedule(name, **settings))
        return rooms.schedule(name)

    return one


@pytest.fixture
def messages(make: Callable[..., ScheduleMessages]) -> ScheduleMessages:
    return make()
