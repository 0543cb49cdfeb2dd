"""Runs all tests but the slow ones in two lanes side by side: much of what takes long is waiting.

Those that run whole servers and kill them have a lane of their own; the output of the others comes at the end.
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
