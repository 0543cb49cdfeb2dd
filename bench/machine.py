"""Describes the machine that the numbers were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw
import psutil

_PACKAGES = (
    "strandline",
    "apsw",
    "pyarrow",
    "msgspec",
    "jsonschema-rs",
    "granian",
    "uvloop",
    "starlette",
    "httpx",
)


def describe(directory: Path) -> dict[str, Any]:
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),  # other processes that were running
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "sqlite": apsw.sqlite_lib_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "fsync_ms": {"4 KB": _fsync_ms(directory, 4096), "150 KB": _fsync_ms(directory, 150_000)},
    }


def _fsync_ms(directory: Path, size: int) -> float:
    """How long the disk takes to make a write durable. Every commit waits for at least one fsync."""
    path = directory / "bench-fsync"
    block = os.urandom(size)
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(50):
            file.seek(0)
            file.write(block)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - start)
    path.unlink()
    return round(statistics.median(taken) * 1000, 3)


def cpu_seconds(*pids: int) -> float:
    """The processor time that these processes and their children have used so far."""
    found = [psutil.Process(pid) for pid in pids]
    family = {process.pid: process for first in found for process in (first, *first.children(recursive=True))}
    times = [process.cpu_times() for process in family.values()]
    return sum(used.user + used.system for used in times)
