"""Every contract test of the schedule's store runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_place import BrokerPlace
from schedule_place import SchedulePlace, made

from strandline.schedule.storage import ScheduleStore


@pytest.fixture
def place(database_url: str) -> Iterator[SchedulePlace]:
    opened = SchedulePlace(database_url)
    yield opened
    opened.close()


@pytest.fixture
def store(place: SchedulePlace) -> ScheduleStore:
    """A store with the schedule `s`."""
    store = place.open()
    made(store)
    return store


@pytest.fixture(params=["sqlite", "postgres"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerPlace]:
    """Nodes that deliver, with the real time."""
    url = ""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        url = server.url(server.new_database())
    opened = BrokerPlace(tmp_path / "data", url)
    yield opened
    opened.close()
