"""The registry of jobs defines the command line, `status` and the reference pages, without Spark."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from docs import build
from rich.console import Console

import strandline.cli
from strandline.cli import progress as shown
from strandline.config import Setting
from strandline.pipeline import application
from strandline.pipeline.job import Job, JobContext, ProcessProgress
from strandline.pipeline.registry import JOBS
from strandline.progress import JobProgress

DONE = JobProgress("orders", 1_200, 60, {"0": 0, "1": 7}, {"last_toy": "robot"}, "2024-05-01T12:00:00.000Z")


def run_toy(context: JobContext) -> None:
    context.on_progress(msgspec.structs.replace(DONE, rows=context.options["pause_ms"]))


TOY = Job(
    "toy",
    "Play with events.",
    run_toy,
    lambda _platform: [ProcessProgress("0123456789", [DONE]), ProcessProgress("abcdefghij", [])],
    details={"last_toy": "the toy that was used last"},
    options=[Setting("toy", "pause_ms", int, 5, "How long to pause.")],
)


@pytest.fixture
def pipeline(monkeypatch) -> click.Group:
    """`strandline pipeline` with one more job in the registry."""
    monkeypatch.setitem(JOBS, "toy", TOY)
    name = "strandline.cli.pipeline"
    before = importlib.import_module(name)
    monkeypatch.setattr(strandline.cli, "pipeline", before)
    monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(name).pipeline


@pytest.fixture
def call(pipeline, tmp_path) -> Callable[..., Result]:
    return lambda *arguments: CliRunner().invoke(pipeline, [*arguments, "--data", str(tmp_path)])


def test_a_job_is_a_choice_of_run_with_its_summary_and_its_options(call):
    """A job needs only its entry in the registry."""
    text = call("run", "--help").output
    assert re.search(r"^ +toy +Play with events\.$", text, re.MULTILINE)
    assert call("run", "toys").exit_code == 2
    assert "--toy-pause-ms INTEGER" in text
    assert "How long to pause. [default: 5]" in " ".join(text.split())


@pytest.fixture
def started(monkeypatch) -> list:
    """The jobs that would run in a Spark application."""
    calls = []
    monkeypatch.setattr(application, "run_application", lambda jobs, *_, **options: calls.append((jobs, options)))
    return calls


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (["toy"], {"toy": {"pause_ms": 5}}),
        (["archive", "toy", "toy", "--toy-pause-ms", "9"], {"archive": {}, "toy": {"pause_ms": 9}}),
    ],
)
def test_jobs_are_run_with_their_options(call, started, arguments, jobs):
    """Defaults are included, and a job that is named twice runs once."""
    done = call("run", *arguments, "--once")
    assert done.exit_code == 0, done.output
    assert started == [(jobs, {"once": True})]


def test_options_of_a_job_can_be_configured(call, started, tmp_path, monkeypatch):
    """A flag wins over the environment, and the environment over the file."""
    (tmp_path / "strandline.toml").write_text(
        '[relay]\nsource = "orders"\ntarget = "later"\nschedule = "buffer"\n'
    )
    monkeypatch.setenv("STRANDLINE_RELAY__TARGET", "much-later")
    monkeypatch.setenv("STRANDLINE_RELAY__SCHEDULE", "hours")
    done = call("run", "relay", "--relay-schedule", "days", "--once")
    assert done.exit_code == 0, done.output
    ((jobs, _),) = started
    assert [jobs["relay"][name] for name in ("source", "target", "schedule")] == ["orders", "much-later", "days"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["relay", "--relay-delay-ms", "-1"], "relay.delay_ms must be at least 0"),
        (["toy", "--toy-pause-ms", "x"], "'x' is not a valid integer"),
        (["game"], "'game' is not one of 'archive', 'replicate', 'fanout', 'rebuild', 'relay', 'toy'"),
    ],
)
def test_mistakes_are_refused(call, started, arguments, said):
    """An invalid argument is reported before anything is started."""
    done = call("run", *arguments)
    assert (done.exit_code, started) == (2, [])
    assert said in done.output


def test_status_shows_every_job_that_runs(call):
    """The details of a job are columns. A process that has not reported yet is also shown."""
    lines = call("status").output.splitlines()
    assert "last toy" in lines[0]
    cells = ["toy", "01234567", "orders", "1,200", "60", "7", "7", "in", "partition", "1", DONE.worked_at, "robot"]
    assert [line.split() for line in lines[2:4]] == [cells, ["toy", "abcdefgh", *["–"] * 7]]
    (found,) = json.loads(call("status", "--json").output)
    assert found == {"job": "toy", "process": "0123456789", "progress": DONE.fields()}


def test_status_reads_the_settings_that_the_jobs_have(pipeline, call, tmp_path, monkeypatch):
    """Their databases may be named in a file elsewhere, as for `run`."""
    seen = []
    status = dataclasses.replace(TOY, status=lambda platform: seen.append(platform.settings.schedule.url) or [])
    monkeypatch.setitem(JOBS, "toy", status)
    monkeypatch.setitem(JOBS, "relay", status)
    file = tmp_path / "elsewhere.toml"
    file.write_text('[schedule]\nurl = "postgresql://nobody@127.0.0.1:1/none"\n')
    done = call("status", "--config", str(file))
    assert (done.exit_code, {*seen}) == (0, {"postgresql://nobody@127.0.0.1:1/none"}), done.output


def test_the_pages_name_every_job(pipeline):
    """The page of jobs has summary, options and details; the page of the command line has the flags."""
    page = build.jobs_page()
    for text in ("`toy`", "Play with events.", "`--toy-pause-ms`", "`last_toy`", "the toy that was used last"):
        assert text in page
    assert "--toy-pause-ms" in build.cli_page()


def context(on_progress: Callable[[JobProgress], None]) -> JobContext:
    return JobContext(None, None, threading.Event(), once=True, on_progress=on_progress, options={"pause_ms": 3})


def test_progress_is_shown_as_json_lines(capsys):
    """Each line has the name of its job, and is written only after a change."""
    with shown.shown(as_json=True) as show:
        for job in ("toy", "toy", "archive"):
            run_toy(context(lambda progress, job=job: show(job, progress)))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("job") for line in lines] == ["toy", "archive"]
    assert lines == [{**DONE.fields(), "rows": 3}] * 2


def test_progress_is_shown_as_log_lines(caplog):
    """Without a terminal, the first progress is logged at once and later ones periodically."""
    with caplog.at_level("INFO"), shown.shown(as_json=False) as show:
        for worked_at in (DONE.worked_at, "2024-05-01T12:00:01.000Z"):  # an idle step is no progress to show
            show("toy", msgspec.structs.replace(DONE, worked_at=worked_at))
    assert [record.fields for record in caplog.records] == [{"job": "toy", **DONE.fields()}]


def test_progress_is_shown_as_bars():
    """Each job and event type has a bar with the details of the job. Times omit zero seconds."""
    screen = io.StringIO()
    with shown._Bars(Console(file=screen, force_terminal=True, width=200)) as bars:
        bars.show("toy", DONE)
        bars.show("toy", msgspec.structs.replace(DONE, details={"last_toy": None}))
        bars.show("archive", msgspec.structs.replace(DONE, details={"last_flag": "2024-05-01T12:00:00.000Z"}))
    last = re.sub(r"\x1b\[[\d;?]*\w", "", screen.getvalue()).splitlines()[-2:]
    assert [re.split(r" +[━╸╺]+ +", line.strip()) for line in last] == [
        ["toy orders", "60 rows/s  lag 7  last toy –"],
        ["archive orders", "60 rows/s  lag 7  last flag 2024-05-01T12:00"],
    ]


def test_a_job_that_fails_stops_the_others():
    """The other jobs end gracefully, then the error is raised."""
    stop, ended = threading.Event(), []

    def fails() -> None:
        raise ValueError("broken toy")

    def waits() -> None:
        assert stop.wait(30)
        ended.append("gracefully")

    with pytest.raises(ValueError, match="broken toy"):
        application.run_all([waits, fails, waits], stop)
    assert ended == ["gracefully"] * 2


_WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
from strandline.cli import cli
cli(["pipeline", *sys.argv[1:]], standalone_mode=False)
print("pyarrow" in sys.modules)
"""


def without_spark(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", _WITHOUT_SPARK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_help_and_status_need_no_spark(tmp_path):
    """Help must be fast, so it does not import Arrow either."""
    for arguments, arrow in [(("run", "--help"), "False"), (("status", "--data", tmp_path), "True")]:
        done = without_spark(*map(str, arguments))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == arrow


def test_a_missing_spark_is_named_with_the_way_to_install_it(tmp_path):
    """The error comes before anything is opened."""
    done = without_spark("run", "archive", "--data", str(tmp_path))
    assert "the pipeline needs pyspark; pip install 'strandline[spark]'" in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_the_names_of_jobs_are_their_own():
    """A job is registered under its own name, and its details do not hide a common field of progress."""
    assert [job.name for job in JOBS.values()] == [*JOBS]
    assert {name for job in JOBS.values() for name in job.details} & {*JobProgress.__struct_fields__} == set()
