"""Conversion of records to the form that Spark expects."""

import itertools
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from strandline.errors import Invalid
from strandline.log.reading import Batch
from strandline.log.records import READ
from strandline.pipeline.columns import NAMES, converter, spark_schema
from strandline.pipeline.options import columns_of

RECORDS = pa.RecordBatch.from_pylist(
    [
        {"offset": 7, "timestamp": 1_700_000_000_123, "key": b"k", "value": b"{}", "headers": [("h", b"1")]},
        {"offset": 8, "timestamp": 1_700_000_000_124, "key": None, "value": b"[]", "headers": None},
    ],
    schema=READ,
)
BATCH = Batch("orders", "3", 2, RECORDS)


def test_every_choice_of_columns_has_the_schema_that_spark_makes_of_it():
    """Spark compares Arrow schemas exactly, including the names inside lists and time zones."""
    for count in range(1, len(NAMES) + 1):
        for names in itertools.combinations(NAMES, count):
            expected = to_arrow_schema(spark_schema(names), timezone="UTC")
            assert converter(names)(BATCH).schema.equals(expected), names


def test_records_come_out_as_they_are():
    """A row has the position of its record, its time in microseconds, and its headers."""
    first, second = converter(NAMES)(BATCH).to_pylist()
    assert first == {
        "event_type": "orders",
        "partition": 3,
        "timeline": 2,
        "offset": 7,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        "key": b"k",
        "value": b"{}",
        "headers": [{"key": "h", "value": b"1"}],
    }
    assert second["headers"] is None


def test_columns_are_chosen_by_name():
    """The default is all columns. The error for an unknown column lists the existing ones."""
    assert columns_of({}) == NAMES
    assert columns_of({"columns": "value, offset"}) == ("value", "offset")
    with pytest.raises(Invalid, match="there is no column 'payload'; columns are event_type"):
        columns_of({"columns": "payload"})
    with pytest.raises(Invalid, match="twice"):
        columns_of({"columns": "value,value"})
