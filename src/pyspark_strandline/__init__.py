"""Makes `format("strandline")` known: Spark looks for a `DefaultSource` in every module `pyspark_…` it finds."""

from strandline.pipeline.source import StrandlineSource as DefaultSource

__all__ = ["DefaultSource"]
