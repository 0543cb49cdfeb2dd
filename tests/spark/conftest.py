"""One Spark session for all tests, because it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.log.ranges import close_storages
from strandline.pipeline.session import spark_session
from strandline.platform import Platform


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    session = spark_session("tests", master="local[2]", settings=settings)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _storages_of_ranges() -> Iterator[None]:
    """Close the storages that a test opened in this process."""
    yield
    close_storages()


@pytest.fixture
def platform(tmp_path) -> Iterator[Platform]:
    """A new platform in `tmp_path / "data"`."""
    with strandline.open(tmp_path / "data") as opened:
        yield opened
