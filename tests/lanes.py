"""Runs all tests except the slow ones in three parallel lanes, because tests spend much of their time waiting.

Each lane has the tests in its folders, but not those in folders of other lanes. The output of the first lane is
printed at once. The output of the others is printed at the end, then the lines that no lane has executed. The run
fails if a test fails, or if too few lines and branches of `src` were executed.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

LANES = (("tests",), ("tests/chaos", "tests/spark"), ("tests/contract",))
# The lowest allowed coverage in percent. Only ever raise it.
FLOOR = 88
COVER = (sys.executable, "-m", "slipcover")
# SlipCover is a plugin of pytest, too, and is loaded before it.
TESTS = ("-m", "pytest", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not slow")


def main() -> int:
    with ExitStack() as stack:
        covered = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        first, *others = (command(paths, covered / f"{number}.json") for number, paths in enumerate(LANES))
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        processes = [
            subprocess.Popen(other, stdout=output, stderr=subprocess.STDOUT)
            for other, output in zip(others, outputs, strict=True)
        ]
        codes = [subprocess.call(first)]
        for process, output in zip(processes, outputs, strict=True):
            codes.append(process.wait())
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.buffer.flush()
        codes.append(report(covered))
    return max(codes, key=abs)


def command(paths: Sequence[str], covered: Path) -> list[str]:
    inside = [path for lane in LANES for path in lane if any(path.startswith(f"{own}/") for own in paths)]
    ignored = [f"--ignore={path}" for path in inside if path not in paths]
    cover = [*COVER, "--source", "src/strandline", "--branch", "--json", "--out", str(covered)]
    return [*cover, *TESTS, *paths, *ignored]


def report(covered: Path) -> int:
    parts = sorted(map(str, covered.iterdir()))
    merged = ["--out", str(covered / "all.json"), "--skip-covered", "--fail-under", str(FLOOR)]
    code = subprocess.call([*COVER, "--branch", *merged, "--merge", *parts])
    if code == 2:  # SlipCover's code for that
        print(f"the tests execute less than {FLOOR} % of src/strandline")  # noqa: T201 - a program
    return code


if __name__ == "__main__":
    sys.exit(main())
