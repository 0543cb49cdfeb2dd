"""A SQLite storage on a full or read-only disk: `disk_worker.py <function> <directory>`; prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from strandline.engine import sqlite
from strandline.errors import StrandlineError
from strandline.log.records import NewRecords
from strandline.log.storage.sqlite import SqliteStorage

VALUE = b"v" * 20_000
DAY_MS = 86_400_000
NOBODY = 65534


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


def writable_later(directory: Path) -> dict[str, object]:
    topics = directory / "topics"
    file = str(topics / "t.db")
    storage = SqliteStorage(topics)
    storage.create_topic("t", 1, DAY_MS)
    storage.close()
    mount("--bind", file, file)
    report: dict[str, object] = {}
    for verb, *arguments in (("append",), ("seal", "token"), ("unseal", "token"), ("grow", 2), ("purge", 1)):
        storage = SqliteStorage(topics)
        outcomes = []
        for mode in ("ro", "rw"):
            mount("-o", f"remount,bind,{mode}", file)
            act = partial(append, storage) if verb == "append" else getattr(storage, verb)
            outcomes.append((count(storage, "t"), outcome(partial(act, "t", *arguments))))
        report[verb] = outcomes
        storage.close()
    return report


def made_writable(directory: Path) -> list[object]:
    if not os.geteuid():
        os.setuid(NOBODY)  # root can write to any file
    topics = directory / "topics"
    storage = SqliteStorage(topics)
    storage.create_topic("t", 1, DAY_MS)
    storage.close()
    (topics / "t.db").chmod(0o444)
    storage = SqliteStorage(topics)
    report: list[object] = [count(storage, "t"), outcome(partial(append, storage, "t"))]
    (topics / "t.db").chmod(0o644)
    report += [outcome(partial(append, storage, "t")), count(storage, "t")]
    storage.close()
    return report


def outcome(act) -> str:
    try:
        act()
    except StrandlineError as error:
        return type(error).__name__
    return "done"


if __name__ == "__main__":
    acts = {act.__name__: act for act in (fill, read_only, writable_later, made_writable)}
    report = acts[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(report))  # noqa: T201 - this is how it answers
