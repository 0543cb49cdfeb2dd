"""Runs all tests except the slow ones in two parallel lanes, because tests spend much of their time waiting.

Tests that run whole servers and kill them have their own lane. The output of the other lane is printed at the end.
"""

import subprocess
import sys
import tempfile

BESIDE = ("tests/unit", "tests/spark", "tests/contract")
RUN = (sys.executable, "-m", "coverage", "run", "-m", "pytest", "-m", "not slow")


def main() -> int:
    with tempfile.TemporaryFile() as said:
        beside = subprocess.Popen([*RUN, *BESIDE], stdout=said, stderr=subprocess.STDOUT)
        first = subprocess.call([*RUN, *(f"--ignore={path}" for path in BESIDE)])
        second = beside.wait()
        said.seek(0)
        sys.stdout.buffer.write(said.read())
    return first or second


if __name__ == "__main__":
    sys.exit(main())
