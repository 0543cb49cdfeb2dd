"""What Spark needs on this machine: Java and the package pyspark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from strandline.errors import Unavailable

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')
_ANSWER_SECONDS = 20


def java() -> str:
    """The version of the Java that Spark would use, as Java prints it. Unavailable if Spark cannot use it."""
    needed = f"Spark jobs need Java {OLDEST_JAVA} or newer"
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java" if not home else str(Path(home) / "bin" / "java"))
    if program is None:
        where = f"not found in JAVA_HOME ({home})" if home else "not found"
        raise Unavailable(f"{where}; {needed}: install it, or set JAVA_HOME to its directory")
    try:
        asked = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{program} does not run ({error}); {needed}") from error
    lines = asked.stderr.splitlines() or asked.stdout.splitlines() or ["unknown version"]
    found = _VERSION.search("\n".join(lines))
    if found is not None and int(found[1]) < OLDEST_JAVA:
        raise Unavailable(f"{program} is too old ({lines[0]}); {needed}")
    return lines[0]


def missing() -> str | None:
    """What has to be installed before jobs can run here; None if nothing is missing."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed; pip install 'strandline[spark]'"
    try:
        java()
    except Unavailable as error:
        return f"Java: {error.detail}"
    return None
