"""Every contract test of the feeds' store runs on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_place import FeedPlace, SqlitePlace, ValkeyPlace

from strandline.feeds.storage import FeedStore


@pytest.fixture(params=["sqlite", "valkey", "valkey_cluster"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FeedPlace]:
    opened = (
        SqlitePlace(tmp_path) if request.param == "sqlite" else ValkeyPlace(request.getfixturevalue(request.param))
    )
    yield opened
    opened.close()


@pytest.fixture
def store(place: FeedPlace) -> FeedStore:
    return place.open()
