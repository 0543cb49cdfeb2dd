"""The archive processes that tests kill or pause; imported once, then forked for each process."""

from __future__ import annotations

import sys
from pathlib import Path

from strandline import failpoints
from strandline.errors import LeaseLost, NotFound

sys.path.insert(0, str(Path(__file__).parents[1] / "contract" / "archive"))

from archive_place import GRACE, ArchivePlace

from strandline.archive.archiver import Archiver
from strandline.archive.model import HOUR_MS

#: The exit code of a process that was replaced while it was paused.
REPLACED = 42
MINUTE = 60_000


def place(folder: Path, now_ms: int) -> ArchivePlace:
    """An archive that collects new records at every step, so that there are files to merge."""
    url = folder / "ledger.url"
    return ArchivePlace(folder, now_ms, url.read_text() if url.exists() else "", min_records=1, look_back_hours=1)


def live(folder: Path, hour_ms: int, failpoint: str = "", time: int = 1) -> None:
    """Archive one hour, from the start of the process to a graceful stop after the hour is flagged.

    Events are on time, late for the hour before, which is flagged already, or too old. The process fails when it
    reaches the failpoint for the `time`-th time.
    """
    failpoints.arm(f"{failpoint}:{time}" if failpoint else "")
    archive = place(folder, hour_ms + MINUTE)
    archiver = archive.archiver()
    try:
        _live(archive, archiver, hour_ms)
    except (LeaseLost, NotFound):  # its staged files may be deleted as well
        archiver.abort()
        sys.exit(REPLACED)
    archive.close()


def _live(archive: ArchivePlace, archiver: Archiver, hour_ms: int) -> None:
    archive.step(archiver)
    for minute in range(2, 8):
        archive.publish(hour_ms + minute, hour_ms - HOUR_MS + minute, hour_ms - 99 * 24 * HOUR_MS)
        archive.publish(hour_ms + minute, partition=1)
        archive.step(archiver, hour_ms + minute * MINUTE)
    archive.step(archiver, hour_ms + HOUR_MS)
    archive.step(archiver, hour_ms + HOUR_MS + GRACE)
    archive.propagate()
    archiver.stop(archive.terms)
