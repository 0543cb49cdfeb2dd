"""One catalog per adapter; every contract test runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from catalog_place import CatalogPlace

from strandline.clock import ManualClock
from strandline.log.catalog import Catalog


@pytest.fixture
def place(database_url: str) -> Iterator[CatalogPlace]:
    made = CatalogPlace(database_url)
    yield made
    made.close()


@pytest.fixture
def catalog(place: CatalogPlace) -> Catalog:
    return place.open()


@pytest.fixture
def clock(place: CatalogPlace) -> ManualClock:
    return place.clock
