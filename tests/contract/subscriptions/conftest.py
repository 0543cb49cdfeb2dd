"""One store of subscriptions per adapter; every contract test runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from subscriptions_place import SubscriptionsPlace

from strandline.log.subscriptions.port import SubscriptionStore


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SubscriptionsPlace]:
    if request.param == "sqlite":
        made = SubscriptionsPlace(f"sqlite:{tmp_path / 'catalog.db'}")
    else:
        server = request.getfixturevalue("postgres")
        made = SubscriptionsPlace(server.url(server.new_database()))
    yield made
    made.close()


@pytest.fixture
def store(place: SubscriptionsPlace) -> SubscriptionStore:
    return place.open()
