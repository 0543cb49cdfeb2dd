"""One storage per adapter; every contract test runs on each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_place import DAY_MS, Place, store_as

from strandline.log.storage import Storage


@pytest.fixture(params=["sqlite", "sqlite, Arrow only", "sqlite, compacting", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param.startswith("sqlite"):
        address = f"sqlite:{tmp_path / 'topics'}"
        store_as(request.param.removeprefix("sqlite").strip(", "), monkeypatch)
    else:
        broker = request.getfixturevalue("kafka")
        address = f"kafka:{broker.bootstrap_servers}"
    made = Place(address)
    yield made
    made.close()


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.open()


@pytest.fixture
def topic(storage: Storage) -> str:
    """A new topic with three partitions."""
    name = f"topic.{uuid.uuid4().hex}"
    storage.create_topic(name, 3, DAY_MS)
    return name
