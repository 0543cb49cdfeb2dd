"""The columns of the source: their Spark types, and the conversion of records to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandline.log.reading import Batch

_TIMESTAMP = pa.timestamp("us", "UTC")
# Spark expects this name for the items of a list.
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

_COLUMNS: dict[str, tuple[DataType, Callable[[Batch], pa.Array]]] = {
    "event_type": (StringType(), lambda batch: pa.repeat(batch.event_type, len(batch))),
    "partition": (IntegerType(), lambda batch: pa.repeat(pa.scalar(int(batch.partition), pa.int32()), len(batch))),
    "timeline": (IntegerType(), lambda batch: pa.repeat(pa.scalar(batch.timeline, pa.int32()), len(batch))),
    "offset": (LongType(), lambda batch: batch.records.column("offset")),
    "timestamp": (TimestampType(), lambda batch: _timestamps(batch.records.column("timestamp"))),
    "key": (BinaryType(), lambda batch: batch.records.column("key")),
    "value": (BinaryType(), lambda batch: batch.records.column("value")),
    "headers": (ArrayType(_HEADER), lambda batch: _headers(batch.records.column("headers"))),
}
NAMES = tuple(_COLUMNS)


def spark_schema(names: Sequence[str] = NAMES) -> StructType:
    return StructType([StructField(name, _COLUMNS[name][0]) for name in names])


def converter(names: Sequence[str]) -> Callable[[Batch], pa.RecordBatch]:
    """A function that converts records to these columns, as Spark expects them. It copies little."""
    columns = [_COLUMNS[name][1] for name in names]
    return lambda batch: pa.RecordBatch.from_arrays([column(batch) for column in columns], names=[*names])


def _timestamps(found: pa.Array) -> pa.Array:
    return pc.multiply(found, 1000).view(_TIMESTAMP)


def _headers(found: pa.Array) -> pa.Array:
    return pa.nulls(len(found), _HEADERS) if found.null_count == len(found) else found.cast(_HEADERS)
