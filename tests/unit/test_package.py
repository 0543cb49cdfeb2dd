"""The package itself: what `import strandline` gives, and how it is loaded."""

from __future__ import annotations

import subprocess
import sys

_RACE = """
import sys, threading
import strandline

sys.setswitchinterval(1e-6)
start = threading.Barrier(2)
failed = []

def load(name):
    start.wait()
    try:
        getattr(strandline, name)
    except ImportError as error:
        failed.append(error)

threads = [threading.Thread(target=load, args=(name,)) for name in ("open", "connect")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(str(failed) if failed else 0)
"""


def test_threads_may_load_different_parts_at_once():
    """`open` and `connect` for the first time, at the same moment."""
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
