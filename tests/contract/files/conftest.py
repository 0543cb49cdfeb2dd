"""One file tree per adapter; every contract test runs on each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from files_place import Place

from strandline.archive.files import Files

GUARDED = ["local", "hdfs", "s3"]


def made(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = uuid.uuid4().hex
    if kind == "hdfs":
        return Place(f"{request.getfixturevalue('hdfs').url}/test/{name}")
    if kind == "s3":
        return Place(request.getfixturevalue("s3").url(f"test/{name}"))
    return Place(f"{'arrow:' if kind == 'arrow' else ''}{tmp_path / 'files'}")


@pytest.fixture(params=[*GUARDED, "arrow"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = made(request.param, request, tmp_path)
    yield place
    place.close()


@pytest.fixture(params=GUARDED)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A tree that is safe against concurrent processes."""
    place = made(request.param, request, tmp_path)
    yield place
    place.close()


@pytest.fixture
def files(place: Place) -> Files:
    return place.open()
