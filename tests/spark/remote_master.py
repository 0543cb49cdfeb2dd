"""A Spark application whose tasks run in another process than its driver.

Its arguments are a data directory, an event type in SQLite and one on Kafka. It prints the result of each access.
"""

import json
import sys

from pyspark.errors import PySparkException

from strandline.pipeline.session import spark_session


def said(act) -> str:
    """The result, or the line of the error that names the Strandline exception."""
    try:
        return str(act())
    except PySparkException as error:
        return next(line for line in str(error).splitlines() if "strandline.errors" in line)


def main(data: str, in_sqlite: str, on_kafka: str) -> None:
    spark = spark_session(master="local-cluster[1,1,1024]", settings={"spark.task.maxFailures": "1"})

    def read(name: str) -> int:
        return spark.read.format("strandline").option("data", data).option("event_types", name).load().count()

    def write() -> None:
        frame = spark.range(1).write.format("strandline").option("data", data).option("event_type", in_sqlite)
        frame.mode("append").save()

    answers = {
        "sqlite": said(lambda: read(in_sqlite)),
        "kafka": said(lambda: read(on_kafka)),
        "write": said(write),
        "java": [spark._jvm.System.getProperty(name) for name in ("whose", "log4j2.configurationFile")],
    }
    print(json.dumps(answers))  # noqa: T201 - the test reads it
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
