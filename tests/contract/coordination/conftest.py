"""One coordination per adapter; every contract test runs on each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordination_place import Place

from strandline.coordination.port import Coordination


@pytest.fixture(params=["sqlite", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        made = Place(f"sqlite:{tmp_path}")
    else:
        server = request.getfixturevalue("zookeeper")
        made = Place(f"zookeeper://{server.hosts}/test/{uuid.uuid4().hex}", server)
    yield made
    made.close()


@pytest.fixture
def coordination(place: Place) -> Coordination:
    return place.open()
