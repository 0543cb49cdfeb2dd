"""Everything that runs on Spark: the session, the source and sink `format("strandline")`, and the jobs."""
