"""Registers `format("strandline")`: Spark looks for a `DefaultSource` in every module named `pyspark_…`."""

from strandline.pipeline.source import StrandlineSource as DefaultSource

__all__ = ["DefaultSource"]
