"""One catalog per adapter; every contract test runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from catalog_place import CatalogPlace

from strandline.clock import ManualClock
from strandline.log.catalog import Catalog


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogPlace]:
    if request.param == "sqlite":
        made = CatalogPlace(f"sqlite:{tmp_path / 'catalog.db'}")
    else:
        server = request.getfixturevalue("postgres")
        made = CatalogPlace(server.url(server.new_database()))
    yield made
    made.close()


@pytest.fixture
def catalog(place: CatalogPlace) -> Catalog:
    return place.open()


@pytest.fixture
def clock(place: CatalogPlace) -> ManualClock:
    return place.clock
