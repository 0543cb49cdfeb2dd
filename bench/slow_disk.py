"""Runs the benchmarks as on a disk that takes longer to make a write durable.

The library is preloaded into this process and, through the environment, into every service that it starts: both
sides of a row wait for the same fsync.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_VARIABLE = "STRANDBENCH_FSYNC_MS"
_SOURCE = Path(__file__).with_name("slow_disk.c")


def restart(fsync_ms: float, directory: Path, arguments: Sequence[str]) -> None:
    """Start this program again with the library, unless it has it already."""
    if _VARIABLE not in os.environ:
        variables = {**os.environ, **environment(fsync_ms, compiled(directory))}
        os.execve(sys.executable, [sys.executable, "-m", "bench", *arguments], variables)  # noqa: S606 - no shell


def compiled(directory: Path) -> Path:
    library = (directory / "slow_disk.so").resolve()
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def environment(fsync_ms: float, library: Path) -> dict[str, str]:
    """What a process needs to see such a disk."""
    return {_VARIABLE: str(fsync_ms), "LD_PRELOAD": str(library)}


def results(fsync_ms: float) -> Path:
    """The file for the results of such a disk."""
    return Path(__file__).parent / f"results-fsync-{fsync_ms:g}ms.json"
