"""A Spark query, run as a process that tests kill. It reads `chaos` into files without end.

With `once` it reads all records up to now, then prints timeline, offset and number of all rows by partition.
"""

import json
import sys

from strandline.pipeline.session import spark_session


def main(data: str, folder: str, how: str) -> None:
    spark = spark_session(master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    source = spark.readStream.format("strandline").option("data", data).option("event_types", "chaos")
    frame = (
        source.option("columns", "partition,timeline,offset,value").option("max_records_per_batch", 3000).load()
    )
    numbers = frame.selectExpr(
        "partition", "timeline", "offset", "get_json_object(CAST(value AS STRING), '$.n') AS n"
    )
    writer = numbers.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    trigger = {"availableNow": True} if how == "once" else {"processingTime": "0 seconds"}
    writer.trigger(**trigger).start(f"{folder}/rows").awaitTermination()
    found: dict[int, list[tuple[int, int, int]]] = {}
    for row in spark.read.parquet(f"{folder}/rows").orderBy("partition", "timeline", "offset").collect():
        found.setdefault(row.partition, []).append((row.timeline, row.offset, int(row.n)))
    print(json.dumps(found))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main(*sys.argv[1:])
