"""`format("strandline")` as a sink: publishes a DataFrame to an event type, at least once.

A task that is retried publishes its rows again, with the same `eid`s. While it writes, a task is a node of the
platform: it takes part in timeline switches like any other publisher.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from strandline.clock import to_rfc3339
from strandline.errors import Invalid
from strandline.log.ranges import patiently
from strandline.pipeline.eids import Stamps
from strandline.pipeline.options import WriteOptions
from strandline.pipeline.session import remote_master, task_property

if TYPE_CHECKING:
    from strandline.platform import Platform

_PUBLISH_EVENTS = 5_000
_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """How many rows a task published."""

    rows: int


class _Writer:
    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise Invalid('the log is append-only; use mode("append") or outputMode("append")')
        self._options = options
        # One column `value` has events as JSON, in text or bytes. Otherwise columns are event fields.
        texts = schema.fieldNames() == ["value"] and isinstance(schema["value"].dataType, StringType | BinaryType)
        self._to_items = _texts if texts else _objects

    def _write(self, write_id: str, iterator: Iterator[pa.RecordBatch]) -> Published:
        options = self._options
        _refuse_remote(options)
        rows = 0
        with options.home.open() as platform:
            stamps = _stamps(platform, options, write_id)
            for batch in iterator:
                for first in range(0, batch.num_rows, _PUBLISH_EVENTS):
                    items = self._to_items(batch.slice(first, _PUBLISH_EVENTS))
                    stamped = items if stamps is None else stamps.stamp(items)
                    # Waiting for each publish keeps the order. One that certainly stored nothing is retried.
                    patiently(partial(platform.log.publish, options.event_type, stamped)).raise_for_failed()
                    rows += len(items)
        return Published(rows)


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        # Chosen once, for all tasks and their retries.
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return self._write(self._write_id, iterator)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        query = self._options.write_id or task_property("sql.streaming.queryId")
        return self._write(f"{query}/{task_property('streaming.sql.batchId')}", iterator)


def _texts(batch: pa.RecordBatch) -> list[bytes]:
    items: list[bytes] = batch.column(0).cast(pa.binary()).to_pylist()
    if None in items:
        raise Invalid("a value is null; an event must be a JSON object")
    return items


def _objects(batch: pa.RecordBatch) -> list[bytes]:
    """Null columns are left out, as by Spark's own `to_json`."""
    rows = batch.to_pylist(maps_as_pydicts="strict")
    return [_encode({name: value for name, value in row.items() if value is not None}) for row in rows]


def _stamps(platform: Platform, options: WriteOptions, write_id: str) -> Stamps | None:
    plain = platform.log.get(options.event_type).category == "undefined"
    if plain and not options.add_eid:
        return None
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    return Stamps(write_id, task, None if plain else to_rfc3339(platform.clock.now_ms()))


def _refuse_remote(options: WriteOptions) -> None:
    if options.home.of_one_machine and (master := remote_master()) is not None:
        raise Invalid(
            f"{options.home.data} is a data directory of one machine, but the Spark master is {master}; "
            "use local[*], or a platform with catalog.url and coordination.url"
        )
