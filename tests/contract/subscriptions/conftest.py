"""One store of subscriptions per adapter; every contract test runs over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from subscriptions_place import SubscriptionsPlace

from strandline.log.subscriptions.port import SubscriptionStore


@pytest.fixture(params=["sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SubscriptionsPlace]:
    made = SubscriptionsPlace(f"{request.param}:{tmp_path / 'catalog.db'}")
    yield made
    made.close()


@pytest.fixture
def store(place: SubscriptionsPlace) -> SubscriptionStore:
    return place.open()
