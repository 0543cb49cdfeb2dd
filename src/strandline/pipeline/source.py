"""`format("strandline")`: the log as a source of batches and streams.

Its offsets are cursors, so a running query continues through a timeline switch. One task reads one partition of
the log, its timelines in sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strandline.errors import Invalid
from strandline.log.ranges import PartitionRange, read_range
from strandline.pipeline import columns, positions
from strandline.pipeline.options import ReadOptions, WriteOptions, columns_of
from strandline.pipeline.planning import Planner
from strandline.pipeline.positions import QueryPosition
from strandline.pipeline.session import remote_master
from strandline.pipeline.sink import BatchWriter, StreamWriter


class StrandlineSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> StructType:
        return columns.spark_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        _check(schema)
        return BatchReader(ReadOptions.of_batch(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        _check(schema)
        return StreamReader(ReadOptions.of_stream(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(WriteOptions.of(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(WriteOptions.of(self.options), schema, overwrite=overwrite)


def _check(schema: StructType) -> None:
    """A schema that the user gives may omit columns, but not change them."""
    names = [name for name in schema.fieldNames() if name in columns.NAMES]
    if schema != columns.spark_schema(names):
        raise Invalid(f"the schema must have columns of {columns.spark_schema().simpleString()}")


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads."""

    part: PartitionRange


def refuse_remote(part: PartitionRange) -> None:
    """Raise Invalid if this task may run on another machine than the files that it reads."""
    if part.of_one_machine and (master := remote_master()) is not None:
        raise Invalid(
            f"event type {part.event_type!r} has records in SQLite files, which only this machine can read, but "
            f"the Spark master is {master}; use local[*], or switch the event type to a Kafka storage first"
        )


class _Reader:
    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):  # Spark's own one if there is nothing to read
            return
        refuse_remote(partition.part)
        convert = columns.converter(self._names)
        for batch in read_range(partition.part):
            yield convert(batch)


class BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        with self._options.home.open() as platform:
            planner = Planner(platform, self._options)
            start, end = planner.located(self._options.start), planner.located(self._options.end)
            return [Task(part) for part in planner.ranges(start, end)]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs in a process beside the driver. Only `read` runs in tasks, on copies of an unused reader."""

    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        super().__init__(options, names)
        self._planner: Planner | None = None
        self._initial: dict[str, QueryPosition] | None = None
        self._target: dict[str, QueryPosition] | None = None

    def _plan(self) -> Planner:
        if self._planner is None:
            self._platform = self._options.home.open()
            self._planner = Planner(self._platform, self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # Spark asks twice for the first batch, and END may move in between.
        if self._initial is None:
            self._initial = self._plan().located(self._options.start)
        return positions.dump(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_records
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._plan().located("END")

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        before = positions.parse(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        after = self._plan().latest(before, most, self._target)
        if before == self._initial:
            after = positions.with_beginning(before, after)
        return positions.dump(after)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return positions.dump(self._plan().newest)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        before, after = positions.parse(start), positions.parse(end)
        return [Task(part) for part in self._plan().ranges(before, after)] if before != after else []

    def stop(self) -> None:
        if self._planner is not None:
            self._platform.close()
