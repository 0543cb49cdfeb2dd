"""Runs all tests except the slow ones in three parallel lanes, because tests spend much of their time waiting.

The first lane has all tests that no other lane has. The output of the others is printed at the end.
"""

import subprocess
import sys
import tempfile
from contextlib import ExitStack

BESIDE = (("tests/chaos", "tests/spark"), ("tests/unit", "tests/contract"))
RUN = (sys.executable, "-m", "coverage", "run", "-m", "pytest", "-m", "not slow")


def main() -> int:
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in BESIDE]
        lanes = [
            subprocess.Popen([*RUN, *paths], stdout=output, stderr=subprocess.STDOUT)
            for paths, output in zip(BESIDE, outputs, strict=True)
        ]
        codes = [subprocess.call([*RUN, *(f"--ignore={path}" for paths in BESIDE for path in paths)])]
        for lane, output in zip(lanes, outputs, strict=True):
            codes.append(lane.wait())
            output.seek(0)
            sys.stdout.buffer.write(output.read())
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(main())
