"""Runs all tests except the slow ones in three parallel lanes, because tests spend much of their time waiting.

The first lane has all tests that no other lane has. The output of the others is printed at the end, then the lines
that no lane has executed. It fails if a test fails, or if too few lines and branches of `src` were executed.
"""

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

BESIDE = (("tests/chaos", "tests/spark"), ("tests/unit", "tests/contract"))
# The lowest allowed coverage in percent. Only ever raise it.
FLOOR = 88
COVER = (sys.executable, "-m", "slipcover")
# SlipCover is a plugin of pytest, too, and is loaded before it.
TESTS = ("-m", "pytest", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not slow")


def main() -> int:
    with ExitStack() as stack:
        covered = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in BESIDE]
        lanes = [
            subprocess.Popen([*lane(covered / f"{n}.json"), *paths], stdout=output, stderr=subprocess.STDOUT)
            for n, (paths, output) in enumerate(zip(BESIDE, outputs, strict=True))
        ]
        others = [f"--ignore={path}" for paths in BESIDE for path in paths]
        codes = [subprocess.call([*lane(covered / "rest.json"), *others])]
        for process, output in zip(lanes, outputs, strict=True):
            codes.append(process.wait())
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.buffer.flush()
        codes.append(report(covered))
    return max(codes, key=abs)


def lane(covered: Path) -> list[str]:
    return [*COVER, "--source", "src/strandline", "--branch", "--json", "--out", str(covered), *TESTS]


def report(covered: Path) -> int:
    parts = sorted(map(str, covered.iterdir()))
    merged = ["--out", str(covered / "all.json"), "--skip-covered", "--fail-under", str(FLOOR)]
    code = subprocess.call([*COVER, "--branch", *merged, "--merge", *parts])
    if code == 2:  # SlipCover's code for that
        print(f"the tests execute less than {FLOOR} % of src/strandline")  # noqa: T201 - a program
    return code


if __name__ == "__main__":
    sys.exit(main())
