"""The package: what `import strandline` provides, and how it is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    """Two threads can load `open` and `connect` for the first time at the same moment."""
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


_PREPARED = """
import gc, sys
import msgspec
import strandline

strandline.{open}(sys.argv[1]).close()

def kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)

ours = [kind for kind in kinds(msgspec.Struct) if kind.__module__.startswith("strandline.")]
assert len(ours) > 10
# msgspec attaches its analysis of a type to the type.
raw = [kind for kind in ours if not any(type(x).__name__ == "StructInfo" for x in gc.get_referents(kind))]
sys.exit(str(raw) if raw else 0)
"""


@pytest.mark.parametrize(("opened", "place"), [("open", "data"), ("connect", "http://127.0.0.1:1")])
def test_no_thread_is_the_first_to_decode_a_value(tmp_path, opened, place):
    """Opening the platform prepares all types: two threads that decode a type first at once can crash."""
    program = _PREPARED.format(open=opened)
    done = subprocess.run(
        [sys.executable, "-c", program, place],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
