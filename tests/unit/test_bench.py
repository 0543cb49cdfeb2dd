import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_bench_runner_measures_a_row(tmp_path):
    """`make bench` cannot rot: its runner does a small round of an embedded row, ours and the peer."""
    command = [sys.executable, "-m", "bench", "--quick", "--directory", str(tmp_path), "append", "100 a batch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "storage append, 100 a batch" in done.stdout
    assert "row per record" in done.stdout


def test_an_unknown_row_is_answered_with_the_rows_there_are(tmp_path):
    """A name that fits no row lists those that exist."""
    command = [sys.executable, "-m", "bench", "--quick", "--directory", str(tmp_path), "no such row"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "storage append" in done.stdout
