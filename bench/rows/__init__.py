"""All rows, in the order of the table."""

from bench.rows import append, archive, http, kafka, pause, publish, read, requests, singles, spark
from bench.runner import Row

ALL: list[Row] = [
    *append.ROWS,
    *publish.ROWS,
    *singles.ROWS,
    *http.ROWS,
    *requests.ROWS,
    *read.ROWS,
    *kafka.ROWS,
    *pause.ROWS,
    *spark.ROWS,
    *archive.ROWS,
]
