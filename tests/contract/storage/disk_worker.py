"""A SQLite storage on a full or read-only disk: `disk_worker.py fill|read_only <directory>`; prints JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from strandline.engine import sqlite
from strandline.errors import StrandlineError
from strandline.log.records import NewRecords
from strandline.log.storage.sqlite import SqliteStorage

VALUE = b"v" * 20_000
DAY_MS = 86_400_000


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def append(storage: SqliteStorage, topic: str) -> int:
    return storage.append(topic, {0: NewRecords(0, [VALUE])}).result()[0].offsets[0]


def count(storage: SqliteStorage, topic: str) -> int:
    found = 0
    while rows := storage.read(topic, 0, found, max_records=10, max_bytes=1 << 20).num_rows:
        found += rows
    return found


def fill(directory: Path) -> dict[str, object]:
    mount("-t", "tmpfs", "-o", "size=6m", "tmpfs", str(directory))
    (directory / "ballast").write_bytes(b"b" * 2_000_000)
    storage = SqliteStorage(directory / "topics")
    storage.create_topic("t", 1, DAY_MS)
    report: dict[str, object] = {}
    acknowledged = 0
    try:
        while acknowledged < 1_000:
            append(storage, "t")
            acknowledged += 1
    except StrandlineError as error:
        report["error"] = type(error).__name__
    report["acknowledged"] = acknowledged
    report["found"] = count(storage, "t")
    (directory / "ballast").unlink()
    report["offset_after_making_room"] = append(storage, "t")
    storage.close()
    storage = SqliteStorage(directory / "topics")
    report["found_after_reopening"] = count(storage, "t") - 1
    storage.close()
    database = sqlite.SqliteConnection(directory / "topics" / "t.db")
    report["integrity"] = database.execute("PRAGMA integrity_check")[0][0]
    database.close()
    return report


def read_only(directory: Path) -> dict[str, object]:
    storage = SqliteStorage(directory / "topics")
    storage.create_topic("t", 1, DAY_MS)
    mount("--bind", str(directory), str(directory))
    mount("-o", "remount,bind,ro", str(directory))
    storage = SqliteStorage(directory / "topics")
    acts = {
        "create": lambda: storage.create_topic("new", 1, DAY_MS),
        "append": lambda: append(storage, "t"),
        "unknown": lambda: append(storage, "none"),
    }
    return {name: outcome(act) for name, act in acts.items()}


def outcome(act) -> str:
    try:
        act()
    except StrandlineError as error:
        return type(error).__name__
    return "done"


if __name__ == "__main__":
    report = {"fill": fill, "read_only": read_only}[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(report))  # noqa: T201 - this is how it answers
