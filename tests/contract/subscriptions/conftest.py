"""One store of subscriptions per adapter; every contract test runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from subscriptions_place import SubscriptionsPlace

from strandline.log.subscriptions.port import SubscriptionStore


@pytest.fixture
def place(database_url: str) -> Iterator[SubscriptionsPlace]:
    made = SubscriptionsPlace(database_url)
    yield made
    made.close()


@pytest.fixture
def store(place: SubscriptionsPlace) -> SubscriptionStore:
    return place.open()
