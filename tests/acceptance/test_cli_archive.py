"""The archive on the command line, run as processes: Spark writes files that other tools can read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.dataset as ds
import pytest

from services import DEADLINE_S, STRANDLINE, Server, environment, run_cli, until
from strandline.clock import parse_rfc3339
from strandline.pipeline.registry import JOBS

NOON = parse_rfc3339("2024-05-01T12:00:00Z")
HOUR_MS = 3_600_000
EVENTS = "".join(
    json.dumps({"n": n, "metadata": {"occurred_at": f"2024-05-01T{12 + n % 2}:{n % 60:02d}:00Z"}}) + "\n"
    for n in range(120)
)
SPARK = ("pipeline", "run", "archive", "--master", "local[2]")


def at(ms: int, speed: float = 1.0) -> dict[str, str]:
    """The environment of a process whose clock starts at that time."""
    return {"STRANDLINE_TEST_CLOCK": f"{ms},{speed}"}


def good(*arguments: str, stdin: str = "", **env: str) -> str:
    done = run_cli(*arguments, stdin=stdin.encode(), **env)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """A log with two hours of orders and one order without a valid time, archived an hour later."""
    folder = tmp_path_factory.mktemp("archive") / "data"
    folder.mkdir()
    target = ("--data", str(folder))
    good("event-types", "create", "orders", "--partitions", "2", *target, **at(NOON))
    good("publish", "orders", *target, stdin=EVENTS, **at(NOON + HOUR_MS + 59 * 60_000))
    good("publish", "orders", *target, stdin='{"metadata": {"occurred_at": "noon"}}\n', **at(NOON + HOUR_MS))
    good(*SPARK, "--once", *target, **at(NOON + 3 * HOUR_MS + 60_000))
    return str(folder)


def test_the_grid_shows_which_hours_are_ready(data):
    """The grid and the JSON show the state of every hour, and the counts add up."""
    now = at(NOON + 3 * HOUR_MS + 120_000)
    found = json.loads(good("archive", "status", "--data", data, "--json", **now))
    (orders,) = found["event_types"]
    states = {hour["hour"][11:13]: hour["state"] for hour in orders["hours"]}
    assert states == {"12": "ready", "13": "ready", "14": "ready", "15": "open"}
    counts = orders["counts"]
    assert (counts["read"], counts["archived"], counts["quarantined"]) == (121, 120, 1)
    assert [one["path"] for one in found["periods"]] == [f"2024-05-01/{hour}" for hour in (12, 13, 14)]
    grid = good("archive", "status", "--data", data, **now)
    assert "■  ■  ■  ·" in grid
    assert "orders 2024-05-01" in grid
    assert "■ ready   □ ended" in grid
    assert orders["worked_at"] in grid
    assert orders["worked_at"].startswith("2024-05-01T15:0")


def test_due_hours_are_shown_whatever_the_span(data):
    """`status` shows them with the reason if the span is another one, and `verify` says that it left them out."""
    later = at(NOON + 100 * 24 * HOUR_MS)
    for command in ("status", "verify"):
        shown = good("archive", command, "--data", data, "--from", "2024-04-01", "--to", "2024-04-02", **later)
        assert "orders: 2024-05-01T15 is not ready: " in shown
        assert "more hours are due" in shown
        assert "■" not in shown


@pytest.fixture(scope="module")
def url(data) -> Iterator[str]:
    with Server(Path(data), env=at(NOON + 3 * HOUR_MS + 120_000)) as server:
        yield server.url


@pytest.fixture(params=["--data", "--url"])
def target(request, data) -> tuple[str, str]:
    """A data directory, or a server on it. Read-only commands work on both."""
    return request.param, data if request.param == "--data" else request.getfixturevalue("url")


def test_commands_that_read_work_on_a_server_too(target):
    """Status, hours, manifest, wait and verify have the same output on a data directory and on a server."""
    now = at(NOON + 3 * HOUR_MS + 120_000)
    assert "■  ■  ■  ·" in good("archive", "status", *target, **now)
    lines = good("archive", "hours", "orders", *target, **now).splitlines()
    assert [line.split()[:2] for line in lines[-4:]] == [
        ["2024-05-01T12", "ready"],
        ["2024-05-01T13", "ready"],
        ["2024-05-01T14", "ready"],
        ["2024-05-01T15", "open"],
    ]
    due = good("archive", "hours", "orders", "--state", "due", *target, **now)
    assert "no hours in this span and state" in due
    manifest = json.loads(good("archive", "manifest", "orders", "2024-05-01T12", *target))
    assert (manifest["revision"], manifest["rows"]) == (1, 60)
    waited = good("archive", "wait", "orders", "2024-05-01T13", *target)
    assert "orders 2024-05-01T13 is ready: revision 1, rows 60, files " in waited
    assert json.loads(good("archive", "wait", "orders", "2024-05-01T12", "--json", *target)) == manifest
    assert "3 of 3 ready hours are in order, 120 rows" in good("archive", "verify", "orders", *target)


def test_hours_that_are_not_ready_are_told_by_exit_code(target):
    """For an hour that is not ready, `wait` has exit code 3 after its timeout and `manifest` has exit code 1."""
    now = at(NOON + 3 * HOUR_MS + 120_000)
    done = run_cli("archive", "wait", "orders", "2024-05-01T15", "--timeout", "0.1", *target, **now)
    assert (done.returncode, b"is not ready: it has not ended yet (waited 0.1 s)" in done.stderr) == (3, True)
    done = run_cli("archive", "manifest", "orders", "2024-05-01T15", *target, **now)
    assert (done.returncode, b"is not ready: it has not ended yet" in done.stderr) == (1, True)


@pytest.mark.parametrize("command", [("replay", "orders", "--into", "x"), ("retire", "orders")])
def test_commands_that_need_the_data_directory_say_so(url, command):
    """`replay` and `retire` refuse a server that is set by --url or by STRANDLINE_URL."""
    for arguments, env in ((("--url", url), {}), ((), {"STRANDLINE_URL": url})):
        done = run_cli("archive", *command, *arguments, **env)
        assert done.returncode == 2
        assert b"this command works on a data directory, not on a server; name it with --data" in done.stderr


def test_other_tools_read_a_day_as_it_is(data):
    """DuckDB reads a day by a pattern, pandas and pyarrow file by file. Spark has its own test."""
    day = Path(data) / "archive" / "2024-05-01"
    values = duckdb.read_parquet(f"{day}/*/orders/data/*.parquet").select("value").fetchall()
    assert sorted(json.loads(value)["n"] for (value,) in values) == [*range(120)]
    files = sorted(day.rglob("*.parquet"))
    frame = pd.concat([pd.read_parquet(file) for file in files])
    assert [*frame.columns][:4] == ["event_type", "partition", "timeline", "offset"]
    assert len(frame) == ds.dataset([str(file) for file in files]).count_rows() == 120


def test_a_damaged_file_is_found(data, tmp_path):
    """Verify reports the hour and the name of a damaged file, with exit code 1."""
    assert "3 of 3 ready hours are in order, 120 rows" in good("archive", "verify", "--data", data)
    file = min((Path(data) / "archive").rglob("12/orders/data/*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        done = run_cli("archive", "verify", "orders", "--data", data)
    finally:
        file.write_bytes(whole)
    assert done.returncode == 1
    assert f"2024-05-01T12: {file.name} is not the file that was published" in done.stdout.decode()


def test_hours_go_back_into_the_log(data):
    """A replay publishes the hours of the span into another event type."""
    good("event-types", "create", "again", "--data", data)
    span = ("--from", "2024-05-01T12", "--to", "2024-05-01T13")
    done = json.loads(good("archive", "replay", "orders", "--into", "again", *span, "--data", data, "--json"))
    assert (done["hours"], done["events"]) == (1, 60)
    lines = good("consume", "again", "--start", "BEGIN", "--data", data).splitlines()
    assert sorted(json.loads(line)["n"] for line in lines) == [*range(0, 120, 2)]


def test_a_running_job_tells_how_far_it_is_and_stops_when_asked(tmp_path):
    """SIGTERM ends a job with exit code 0. All rows are in files, and the status lists no job any more."""
    target = ("--data", str(tmp_path))
    good("event-types", "create", "orders", *target)
    good("publish", "orders", *target, stdin=EVENTS)
    env = environment(STRANDLINE_ARCHIVE__MIN_RECORDS="1", STRANDLINE_ARCHIVE__TIME_FIELD="@timestamp")
    with (tmp_path / "spark.log").open("wb") as log:
        job = subprocess.Popen(
            [STRANDLINE, *SPARK, *target, "--json"], env=env, stdout=subprocess.PIPE, stderr=log
        )
    try:
        told = until(lambda: json.loads(good("pipeline", "status", *target, "--json")), "progress")
        assert (told[0]["job"], told[0]["progress"]["event_type"]) == ("archive", "orders")
        assert {*told[0]["progress"]} >= {"rows", "rows_per_second", "lag", *JOBS["archive"].details}
        until(lambda: json.loads(job.stdout.readline())["rows"] == 120, "all rows")
        assert "orders" in good("pipeline", "status", *target)
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(DEADLINE_S) == 0
    finally:
        job.kill()
        job.stdout.close()
    assert "no job runs" in good("pipeline", "status", *target)
    assert sum(map(ds_rows, (tmp_path / "archive").rglob("*.parquet"))) == 120


def ds_rows(file: Path) -> int:
    return ds.dataset(str(file)).count_rows()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archive", "status", "--from", "noon"), "is not an hour; write 2026-11-15T12"),
        (("archive", "replay", "orders", "--into", "x"), "name the hours with --from and --to"),
        (("archive", "replay", "x", "--into", "x", "--from", "2024-05-01", "--to", "2024-05-02"), "not archived"),
        (("archive", "retire", "x"), "event type 'x' is not archived"),
        (("archive", "hours", "x"), "event type 'x' is not archived"),
        (("archive", "wait", "x", "2024-05-01T12"), "event type 'x' is not archived"),
        (("archive", "manifest", "x", "2024-05-01"), "event type 'x' is not archived"),
        (("archive", "hours", "x", "--state", "late"), "'late' is not one of"),
        (("pipeline", "run", "nothing"), "archive"),
        (("pipeline", "run", "archive", "--archive-grace-ms", "4000000"), "must be shorter than the shifts"),
        (("pipeline", "run", "archive", "--archive-template", "%Y"), "archive.template must have"),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, said):
    """Mistakes are reported before Spark starts, without a traceback."""
    done = run_cli(*arguments, "--data", str(tmp_path))
    assert done.returncode in {1, 2}
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"incubator" not in done.stderr  # the first line that Spark prints


def test_a_spark_that_does_not_start_is_named(tmp_path):
    """The last line of the error names the master. Spark's own messages are above it."""
    done = run_cli("pipeline", "run", "archive", "--master", "spark:/x", "--data", str(tmp_path))
    assert done.returncode == 3
    said = "error: Spark did not start with the master spark:/x: "
    assert said in done.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(
    "command", [("archive", "status"), ("pipeline", "status"), ("pipeline", "run", "archive")]
)
def test_a_missing_directory_is_not_made(tmp_path, command):
    """A missing data directory is an error and is not created."""
    done = run_cli(*command, "--data", str(tmp_path / "nowhere"))
    assert (done.returncode, (tmp_path / "nowhere").exists()) == (1, False)
    assert b"there is no data directory" in done.stderr
