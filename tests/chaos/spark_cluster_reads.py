"""A Spark application that reads `orders` as a batch, then as a stream into files, and writes sums of the rows.

Its tasks hit failpoints, so that a test can pause the tasks of one worker while they run.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from strandline.pipeline.session import spark_session


def passing(name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that returns the rows unchanged and hits a failpoint after every batch."""

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from strandline import failpoints  # noqa: PLC0415 - imported in the worker process

        for batch in batches:
            yield batch
            failpoints.hit(name)

    return passed


def counted(frame: DataFrame) -> dict[str, int]:
    """Count and sums, which are correct only if every number occurs once."""
    numbers = frame.selectExpr("CAST(get_json_object(CAST(value AS STRING), '$.n') AS BIGINT) AS n")
    return numbers.selectExpr("count(*) AS rows", "sum(n) AS numbers", "sum(n * n) AS squares").first().asDict()


def main(master: str, config: str, folder: str) -> None:
    # Small batches, so that every task gets several.
    spark = spark_session(master=master, settings={"spark.sql.execution.arrow.maxRecordsPerBatch": "500"})
    options = {"config": config, "event_types": "orders", "columns": "value"}

    frame = spark.read.format("strandline").options(**options).load()
    answers = {"batch": counted(frame.mapInArrow(passing("test.batch"), frame.schema))}

    stream = spark.readStream.format("strandline").options(**options, max_records_per_batch="6000").load()
    rows = stream.mapInArrow(passing("test.stream"), stream.schema).writeStream.format("parquet")
    query = rows.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query.start(f"{folder}/rows").awaitTermination()
    answers["stream"] = counted(spark.read.parquet(f"{folder}/rows"))
    Path(folder, "found.json").write_text(json.dumps(answers), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
