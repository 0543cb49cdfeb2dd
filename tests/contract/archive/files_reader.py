"""A reader of an archive that knows only its files: Parquet, manifests and flags."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow.parquet as pq


@dataclass
class Found:
    """How often each event is in a flagged hour, in an hour without a flag, and in the quarantine."""

    flagged: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)

    @property
    def all(self) -> Counter[str]:
        return self.flagged + self.open + self.quarantined


def check_files(root: Path) -> Found:
    """Read all files. Every flag lists exactly the files beside it."""
    found = Found()
    for flag in root.rglob("data/_READY"):
        listed = {file["name"]: file["rows"] for file in msgspec.json.decode(flag.read_bytes())["files"]}
        beside = {path.name: pq.read_metadata(path).num_rows for path in flag.parent.glob("*.parquet")}
        assert listed == beside, flag
    for path in [*root.rglob("*.parquet"), *root.rglob("*.quarantined")]:
        inside = path.relative_to(root).parts[0]
        place = found.flagged if (path.parent / "_READY").exists() else found.open
        if inside == "_quarantine":
            place = found.quarantined
        place.update(_ids(path))
    return found


def _ids(path: Path) -> list[str]:
    values = pq.read_table(path, partitioning=None)["value"].to_pylist()
    return [msgspec.json.decode(value)["metadata"]["eid"] for value in values]
