import ast
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import results, slow_disk
from bench.runner import Measured, Rates, Row, Scale, Side, Target, Waits, measure

ROOT = Path(__file__).parents[2]


def test_the_bench_runner_measures_a_row(tmp_path):
    """A short run of the benchmark runner measures an embedded row, for Strandline and its peer."""
    command = [sys.executable, "-m", "bench", "--quick", "--directory", str(tmp_path), "append", "100 a batch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "storage append, 100 a batch" in done.stdout
    assert "row per record" in done.stdout


def test_an_unknown_row_is_answered_with_the_rows_there_are(tmp_path):
    """A name that matches no row lists the existing rows."""
    command = [sys.executable, "-m", "bench", "--quick", "--directory", str(tmp_path), "no such row"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "storage append" in done.stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_slow_disk_delays_every_fsync(tmp_path):
    """The facts of the machine, which a run with such a disk writes, show its fsync."""
    facts = "from bench import machine; from pathlib import Path; print(machine.describe(Path('.'))['fsync_ms'])"
    library = slow_disk.compiled(tmp_path)
    environment = {**os.environ, **slow_disk.environment(30, library)}
    command = [sys.executable, "-c", facts]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert min(ast.literal_eval(done.stdout).values()) >= 30


def row(name: str, *rounds: object, target: Target | None = None) -> Row:
    """A row with one side, which returns these rounds in order."""
    left = iter(rounds)

    @contextmanager
    def sides(*_: object):
        yield [Side("ours", lambda: next(left))]

    return Row(name, {}, sides, target)


def measured(made: Row, rounds: int, tmp_path) -> Measured:
    return measure(made, tmp_path, Scale(1), rounds)["ours"]


def test_waits_of_all_rounds_count_together(tmp_path):
    """The first round is a warm-up and is not counted."""
    found = measured(row("pause", [9_000.0], [*range(1, 100)], [1_000.0]), 2, tmp_path)
    assert found == Waits([*range(1, 100), 1_000.0])
    assert found.facts() == {"waits": 100, "p50_ms": 51, "p99_ms": 1_000, "max_ms": 1_000}


def test_events_are_counted_per_second(tmp_path):
    """Every round has its own rate."""
    found = measured(row("append", 1, 10, 20, 30), 3, tmp_path)
    assert isinstance(found, Rates)
    assert len(found.rounds) == 3


@pytest.mark.parametrize(
    ("target", "ours", "ratio", "met"),
    [
        (Target(rate=100), Rates([100], 1), None, True),
        (Target(rate=100), Rates([99], 1), None, False),
        (Target(ratio=0.7), Rates([1], 1), 0.7, True),
        (Target(ratio=0.7), Rates([1], 1), 0.69, False),
        (Target(ratio=0.7), Rates([1], 1), None, False),
        (Target(p99_ms=250), Waits([250]), None, True),
        (Target(p99_ms=250), Waits([251]), None, False),
        (Target(ratio=0.7, cpu_us=250), Rates([1], 250), 0.7, True),
        (Target(ratio=0.7, cpu_us=250), Rates([1], 251), 0.7, False),
        (Target(ratio=0.7, cpu_us=250), Rates([1], 250), 0.69, False),
    ],
)
def test_a_target_is_met_or_not(target, ours, ratio, met):
    """A higher rate and a shorter wait are better."""
    assert target.met(ours, {} if ratio is None else {"peer": ratio}) is met


def test_a_target_can_name_its_peers():
    """Every named peer must be reached; a peer that was not measured is not."""
    target = Target(ratios={"one": 1, "other": 0.5})
    ours = Rates([1], 1)
    assert target.met(ours, {"other": 0.5, "one": 1.0, "third": 0.1})
    assert not target.met(ours, {"other": 0.49, "one": 1.0})
    assert not target.met(ours, {"one": 1.0})
    assert str(target) == "≥ 1x one, ≥ 0.5x other"


def test_a_side_is_prepared_before_every_round(tmp_path):
    """Preparation is not measured. A side can add facts of its own."""
    steps = []

    @contextmanager
    def sides(*_: object):
        def run() -> int:
            steps.append("run")
            return 1

        yield [Side("ours", run, prepare=lambda: steps.append("prepare"), more=lambda: {"memory_mb": 7})]

    found = measured(Row("burst", {}, sides), 1, tmp_path)
    assert steps == ["prepare", "run"] * 2
    assert found.facts()["memory_mb"] == 7


def test_a_peer_that_cannot_be_measured_is_reported(tmp_path):
    """The row is measured without the peer, and says why."""

    @contextmanager
    def sides(*_: object):
        yield [Side("ours", lambda: 1), Side("peer", lambda: 1, missing="there is no node")]

    made = Row("cycles", {}, sides, Target(ratios={"peer": 1}))
    found = results.result(made, measure(made, tmp_path, Scale(1), 1))
    assert found["sides"]["peer"] == {"not_measured": "there is no node"}
    assert found["ratio"] == {}
    assert found["ok"] is False


def test_a_target_says_what_it_asks_for():
    """The table and the file show all parts of a target."""
    assert str(Target(rate=100_000)) == "≥ 100,000/s"
    assert str(Target(p99_ms=250)) == "p99 ≤ 250 ms"
    assert str(Target(ratio=1.5, cpu_us=250)) == "≥ 1.5x, ≤ 250 µs CPU"


def test_the_processor_time_is_that_of_the_process_under_test(tmp_path):
    """A side can say what its server has used."""
    used = iter([0.0, 9.0, 10.0, 10.4, 20.0, 20.5, 30.0, 30.6])

    @contextmanager
    def sides(*_: object):
        yield [Side("ours", lambda: 1000, lambda: next(used))]

    found = measured(Row("requests", {}, sides), 3, tmp_path)
    assert isinstance(found, Rates)
    assert found.cpu_us == pytest.approx(500)


def test_ours_is_as_many_times_as_good_as_a_peer():
    """The result is 2 if the median ratio of the rates is 2, or if the wait is half as long."""
    assert Rates([200, 20, 400], 1).times_as_good(Rates([100, 10, 1_000], 1)) == 2
    assert Waits([100]).times_as_good(Waits([200])) == 2


def test_a_row_keeps_its_figures_until_it_is_measured_again(tmp_path):
    """A row is stored with its machine. Rows that no longer exist are dropped; the table defines the order."""
    file = tmp_path / "results.json"
    rows = [row("first"), row("second")]
    for name, date in (("second", "old"), ("gone", "old"), ("first", "old"), ("second", "new")):
        results.save(
            {"row": name, "machine": {"date": date}}, rows if name != "gone" else [*rows, row(name)], file
        )
    assert json.loads(file.read_text())["rows"] == [
        {"row": "first", "machine": {"date": "old"}},
        {"row": "second", "machine": {"date": "new"}},
    ]
