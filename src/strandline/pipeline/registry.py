"""All jobs, by name. The command line, `status` and the reference pages are made from this list."""

from __future__ import annotations

from strandline.pipeline import archive, fanout, rebuild, relay, replicate
from strandline.pipeline.job import Job

JOBS: dict[str, Job] = {job.name: job for job in (archive.JOB, replicate.JOB, fanout.JOB, rebuild.JOB, relay.JOB)}
