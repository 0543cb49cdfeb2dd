"""All rows, in the order of the table."""

from bench.rows import append, publish, read, singles
from bench.runner import Row

ALL: list[Row] = [*append.ROWS, *publish.ROWS, *singles.ROWS, *read.ROWS]
