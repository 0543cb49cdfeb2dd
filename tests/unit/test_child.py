"""The process of the jobs of `strandline up`."""

from __future__ import annotations

from dataclasses import replace

from strandline.errors import Invalid
from strandline.pipeline import child
from strandline.pipeline.registry import JOBS
from strandline.progress import JobState


def test_settings_that_keep_a_job_from_running_do_not_stop_the_others(monkeypatch):
    """The reason is told."""

    def refuse(platform, options) -> None:
        raise Invalid(f"{platform} has no room for {options['count']} toys")

    monkeypatch.setitem(JOBS, "archive", replace(JOBS["archive"], check=refuse))
    told = []
    allowed = [job for job in ("archive", "replicate") if child._is_allowed(job, {"count": 3}, "ada", told.append)]
    assert allowed == ["replicate"]
    detail = "ada has no room for 3 toys; correct it and start again"
    assert told == [JobState("archive", "not_started", detail)]


def test_jobs_with_options_run_under_up_if_they_are_given():
    """The archive and the replicator need no options."""
    given = {option.name: option.default for job in JOBS.values() for option in job.options}
    assert [name for name, job in JOBS.items() if job.under_up and job.under_up(given)] == ["archive", "replicate"]
    for name, option in (("relay", "source"), ("fanout", "posts")):
        assert JOBS[name].under_up({**given, option: "orders"}), name
    assert JOBS["rebuild"].under_up is None  # it ends by itself
