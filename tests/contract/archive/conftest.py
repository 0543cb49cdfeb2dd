"""Archives in a temporary directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_place import ArchivePlace

from strandline.log.ranges import close_storages


@pytest.fixture(autouse=True)
def _storages_of_ranges() -> Iterator[None]:
    """Close the storages that a test opened in this process."""
    yield
    close_storages()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., ArchivePlace]]:
    """A function that creates archives, each with its own settings."""
    made: list[ArchivePlace] = []

    def one(**settings: object) -> ArchivePlace:
        made.append(ArchivePlace(tmp_path / f"place-{len(made)}", **settings))
        return made[-1]

    yield one
    for place in made:
        place.close()


@pytest.fixture
def place(make: Callable[..., ArchivePlace]) -> ArchivePlace:
    """An archive with an event type of two partitions."""
    place = make()
    place.create(partitions=2)
    return place


@pytest.fixture
def both(make: Callable[..., ArchivePlace]) -> ArchivePlace:
    """An archive with two event types that looks back to midnight."""
    place = make(look_back_hours=12)
    place.create("orders")
    place.create("clicks")
    return place
