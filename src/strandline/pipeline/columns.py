"""The columns of the source: their Spark types, and the conversion of records to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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

_FIELDS = [
    StructField("event_type", StringType()),
    StructField("partition", IntegerType()),
    StructField("timeline", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("headers", ArrayType(_HEADER)),
]
NAMES = tuple(field.name for field in _FIELDS)

_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Batch], pa.Array]]] = {
    "event_type": (pa.string(), lambda batch: _repeated(batch, pa.scalar(batch.event_type))),
    "partition": (pa.int32(), lambda batch: _repeated(batch, pa.scalar(int(batch.partition), pa.int32()))),
    "timeline": (pa.int32(), lambda batch: _repeated(batch, pa.scalar(batch.timeline, pa.int32()))),
    "offset": (pa.int64(), lambda batch: batch.records.column("offset")),
    "timestamp": (_TIMESTAMP, lambda batch: pc.multiply(batch.records.column("timestamp"), 1000).view(_TIMESTAMP)),
    "key": (pa.binary(), lambda batch: batch.records.column("key")),
    "value": (pa.binary(), lambda batch: batch.records.column("value")),
    "headers": (_HEADERS, lambda batch: _headers(batch.records.column("headers"))),
}


def spark_schema(names: Sequence[str] = NAMES) -> StructType:
    fields = {field.name: field for field in _FIELDS}
    return StructType([fields[name] for name in names])


def converter(names: Sequence[str]) -> Callable[[Batch], pa.RecordBatch]:
    """A function that converts records to these columns, as Spark expects them. It copies little."""
    schema = pa.schema([(name, _COLUMNS[name][0]) for name in names])
    columns = [_COLUMNS[name][1] for name in names]
    return lambda batch: pa.RecordBatch.from_arrays([column(batch) for column in columns], schema=schema)


def _repeated(batch: Batch, value: pa.Scalar) -> pa.Array:
    return pa.repeat(value, len(batch))


def _headers(found: pa.Array) -> pa.Array:
    return pa.nulls(len(found), _HEADERS) if found.null_count == len(found) else found.cast(_HEADERS)
