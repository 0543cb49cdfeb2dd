"""One catalog per adapter; every contract test runs over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from catalog_place import CatalogPlace

from strandline.log.catalog import Catalog


@pytest.fixture(params=["sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogPlace]:
    made = CatalogPlace(f"{request.param}:{tmp_path / 'catalog.db'}")
    yield made
    made.close()


@pytest.fixture
def catalog(place: CatalogPlace) -> Catalog:
    return place.open()
