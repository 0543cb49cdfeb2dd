"""`strandline doctor`: checks this machine, a data directory or a server for known problems."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click
import msgspec

import strandline
from strandline.cli.failures import FAILED, with_next_step
from strandline.cli.target import Target, on_target
from strandline.client import Remote
from strandline.engine import private, sqlite
from strandline.errors import Conflict, StrandlineError
from strandline.log.catalog.connect import FILE, TOPICS
from strandline.log.upkeep import Upkeep
from strandline.pipeline import requirements
from strandline.pipeline.registry import JOBS
from strandline.platform import Platform
from strandline.settings import Settings

_OLDEST_PYTHON = (3, 11)
_LITTLE_SPACE, _NO_SPACE = 2 << 30, 100 << 20
_SLOW_FSYNC_MS = 20.0
_SYNCS = 10
# A clock that shows an earlier time was never set.
_EARLIEST_S = 1_735_689_600  # 2025-01-01
_AHEAD_S = 60
_SERVER_SECONDS = 15


Status = Literal["ok", "warn", "fail"]


class CheckResult(msgspec.Struct, frozen=True):
    """What was checked, the result, and what to do about it."""

    name: str
    status: Status
    detail: str


@click.command()
@on_target
def doctor(target: Target) -> int:
    """Check this machine, the data directory and, with --url, a server."""
    found = list(_checks(target))
    target.print_table(found, ("check", "status", "detail"), map(msgspec.structs.astuple, found))
    return FAILED if any(check.status == "fail" for check in found) else 0


def _checks(target: Target) -> Iterator[CheckResult]:
    yield _python()
    yield _sqlite()
    yield _java()
    yield _spark()
    if target.url is not None:
        yield _clock(None)
        yield from _server(target.url)
        return
    place = _existing(target.data)
    yield _directory(target.data, place)
    yield _space(place)
    yield _fsync(place)
    yield _clock(target.data)
    yield from _stored(target)


def _python() -> CheckResult:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        return CheckResult("python", "fail", f"{found}; install 3.11 or newer")
    return CheckResult("python", "ok", found)


def _sqlite() -> CheckResult:
    try:
        sqlite.check_library()
    except StrandlineError as error:
        return CheckResult("sqlite", "fail", error.detail)
    return CheckResult("sqlite", "ok", sqlite.library_version())


def _java() -> CheckResult:
    try:
        return CheckResult("java", "ok", requirements.java())
    except StrandlineError as error:
        return CheckResult("java", "warn", error.detail)


def _spark() -> CheckResult:
    try:
        return CheckResult("spark", "ok", f"pyspark {version('pyspark')}")
    except PackageNotFoundError:
        return CheckResult("spark", "warn", "pyspark is not installed; pip install 'strandline[spark]'")


def _existing(path: Path) -> Path:
    """The directory or, if it does not exist, its nearest existing parent."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _directory(data: Path, place: Path) -> CheckResult:
    if not place.is_dir():
        return CheckResult("data directory", "fail", f"{place} is not a directory; name another with --data")
    if not os.access(place, os.W_OK | os.X_OK):
        return CheckResult("data directory", "fail", f"{place} is not writable; change its owner or use another")
    if place != data:
        return CheckResult("data directory", "ok", f"{data} does not exist yet; the first start creates it")
    if private.is_open_to_others(data):
        return CheckResult("data directory", "warn", f"{data} is open to other users; run chmod 700 {data}")
    return CheckResult("data directory", "ok", str(data))


def _space(place: Path) -> CheckResult:
    free = shutil.disk_usage(place).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < _NO_SPACE:
        return CheckResult("disk space", "fail", f"{text}; free some space before you start")
    if free < _LITTLE_SPACE:
        return CheckResult("disk space", "warn", f"{text}; free some space soon")
    return CheckResult("disk space", "ok", text)


def _fsync(place: Path) -> CheckResult:
    """Every acknowledged publish waits for an fsync."""
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            times = [_timed_sync(file.fileno()) for _ in range(_SYNCS)]
    except OSError as error:
        return CheckResult("fsync", "fail", f"writing to {place} failed: {error.strerror}; use another directory")
    median = statistics.median(times)
    if median > _SLOW_FSYNC_MS:
        return CheckResult("fsync", "warn", f"{median:.1f} ms; publishes will be slow: use a faster disk")
    return CheckResult("fsync", "ok", f"{median:.2f} ms")


def _timed_sync(descriptor: int) -> float:
    """The milliseconds that a write and its fsync take."""
    started = time.perf_counter()
    os.write(descriptor, b"\0" * 4096)
    os.fsync(descriptor)
    return (time.perf_counter() - started) * 1000


def _clock(data: Path | None) -> CheckResult:
    now = time.time()
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < _EARLIEST_S:
        return CheckResult("clock", "fail", f"{text} is in the past; set the clock")
    catalog = None if data is None else data / FILE
    if catalog is not None and catalog.exists() and catalog.stat().st_mtime > now + _AHEAD_S:
        return CheckResult("clock", "warn", f"{text}, but the data directory is newer; check the clock")
    return CheckResult("clock", "ok", text)


def _stored(target: Target) -> Iterator[CheckResult]:
    """Check the databases, the rooms, the storages that the catalog names, and all their records."""
    damaged = [*_damaged_databases(target.data)]
    if damaged:  # no room can be opened on them
        yield from damaged
        return
    try:
        if not _has_catalog(target.data):
            if (target.data / TOPICS).is_dir():
                yield CheckResult("catalog", "fail", f"{FILE} is missing, but there are topics; restore a backup")
            return
        with target.open_data() as platform:
            yield _jobs(platform)
            yield from _rooms(platform)
            yield from _storages(platform.log.upkeep)
    except StrandlineError as error:
        yield CheckResult("catalog", "fail", error.detail)


def _damaged_databases(data: Path) -> Iterator[CheckResult]:
    """The SQLite databases of the rooms that are no databases or have damaged pages."""
    for file in sorted(data.glob("*.db")):
        try:
            with closing(sqlite.SqliteConnection(file)) as database:
                damage = [text for (text,) in database.execute("PRAGMA quick_check(1)") if text != "ok"]
        except StrandlineError as error:
            damage = [error.detail]
        if damage:
            yield CheckResult(file.stem, "fail", f"{file.name} cannot be used: {damage[0]}; restore a backup")


def _rooms(platform: Platform) -> Iterator[CheckResult]:
    """Ask the databases of the rooms, which may be on other machines."""
    for name, room in platform.rooms.items():
        try:
            room.check_ready()
        except StrandlineError as error:
            yield CheckResult(name, "fail", with_next_step(error))


def _has_catalog(data: Path) -> bool:
    """Whether there is a catalog to open, so that nothing is created for the check."""
    settings = data / "strandline.toml"
    return (data / FILE).exists() or (settings.exists() and bool(Settings.load(settings).catalog.url))


def _storages(upkeep: Upkeep) -> Iterator[CheckResult]:
    """Ask every storage, and compare the checksums of all records in those that answer."""
    asked = upkeep.check_storages()
    for storage_id, error in asked.items():
        yield CheckResult(
            f"storage {storage_id}", *(("ok", "it answers") if error is None else ("fail", error.detail))
        )
    damage = [*upkeep.find_damage([storage_id for storage_id, error in asked.items() if error is None])]
    yield from (CheckResult("records", "fail", error.detail) for error in damage)
    if not damage:
        yield CheckResult("records", "ok", "no damage found")


def _server(url: str) -> Iterator[CheckResult]:
    try:
        with strandline.connect(url, timeout=_SERVER_SECONDS) as remote:
            ready = remote.check_ready()
            yield CheckResult("server", "ok", f"{remote.url} is ready")
            yield from _event_types(remote)
    except StrandlineError as error:
        yield CheckResult("server", "fail", error.detail)
        return
    for job in ready.jobs:
        text = job.state.replace("_", " ") + (f": {job.detail}" if job.detail else "")
        yield CheckResult(f"job {job.job}", "warn" if job.is_wrong else "ok", text)


def _event_types(remote: Remote) -> Iterator[CheckResult]:
    """Ask for the ends of the event types in every storage until one fails, then the storages without any."""
    active = {kind.name: remote.log.timelines(kind.name)[-1].storage_id for kind in remote.log.event_types()}
    failed: dict[str, str] = {}
    for name, storage_id in active.items():
        if storage_id not in failed:
            try:
                remote.log.partitions(name)
            except StrandlineError as error:
                failed[storage_id] = f"{name} cannot be read: {error.detail}"
    for storage_id in (storage.id for storage in remote.log.storages()):
        if storage_id in active.values():
            status: Status = "fail" if storage_id in failed else "ok"
            yield CheckResult(f"storage {storage_id}", status, failed.get(storage_id, "it answers"))
        elif active:
            yield _unused(remote, storage_id, [name for name, used in active.items() if used not in failed])


def _unused(remote: Remote, storage_id: str, movable: Sequence[str]) -> CheckResult:
    """Whether a storage without event types can be used, from the dry run of a switch to it."""
    for name in movable:
        try:
            remote.log.admin.check_switch(name, storage_id)
        except Conflict:  # it is being switched, or cannot be; another one can tell
            continue
        except StrandlineError as error:
            return CheckResult(f"storage {storage_id}", "fail", error.detail)
        return CheckResult(f"storage {storage_id}", "ok", "it answers")
    return CheckResult(f"storage {storage_id}", "warn", "not asked: no event type could be switched to it now")


def _jobs(platform: Platform) -> CheckResult:
    running = [job.name for job in JOBS.values() if job.status(platform)]
    return CheckResult("jobs", "ok", f"{', '.join(running) or 'none'} running; `strandline up` runs them")
