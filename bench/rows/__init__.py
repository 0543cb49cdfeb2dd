"""All rows, in the order of the table."""

from bench.rows import (
    append,
    archive,
    http,
    journal_append,
    journal_read,
    journal_replicate,
    kafka,
    pause,
    publish,
    read,
    relay,
    requests,
    schedule_burst,
    schedule_cycles,
    schedule_lateness,
    schedule_waiting,
    singles,
    spark,
)
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
    *schedule_cycles.ROWS,
    *schedule_waiting.ROWS,
    *schedule_lateness.ROWS,
    *schedule_burst.ROWS,
    *journal_append.ROWS,
    *journal_read.ROWS,
    *journal_replicate.ROWS,
    *relay.ROWS,
]
