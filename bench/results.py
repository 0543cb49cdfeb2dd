"""The results, as a file and as a table. A row keeps its figures until it is measured again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.runner import Measured, Missing, Row

FILE = Path(__file__).parent / "results.json"


def result(row: Row, measured: Mapping[str, Measured]) -> dict[str, Any]:
    ours, *_ = measured.values()
    peers = {name: peer for name, peer in [*measured.items()][1:] if not isinstance(peer, Missing)}
    ratios = {name: ours.times_as_good(peer) for name, peer in peers.items()}
    return {
        **_head(row),
        "sides": {name: found.facts() for name, found in measured.items()},
        "ratio": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "target": str(row.target) if row.target else None,
        "ok": row.target.met(ours, ratios) if row.target else None,
    }


def failure(row: Row, error: Exception) -> dict[str, Any]:
    # The text of a peer's error can name files of this machine.
    text = f"{type(error).__name__}: {error}".replace(str(Path.cwd()), ".")
    return {**_head(row), "failure": text}


def _head(row: Row) -> dict[str, Any]:
    return {"row": row.name, "parameters": dict(row.parameters)}


def save(found: Mapping[str, Any], rows: Sequence[Row], file: Path = FILE) -> None:
    """Replace the older result of the same row, and remove results whose row no longer exists."""
    kept = json.loads(file.read_text())["rows"] if file.exists() else []
    known = {old["row"]: old for old in [*kept, found]}
    report = {"rows": [known[row.name] for row in rows if row.name in known]}
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def table(lines: Sequence[tuple[Row, Mapping[str, Any], Mapping[str, Measured]]]) -> Table:
    made = Table(title="median of the rounds; waits of all rounds together", show_lines=True)
    for column in ("row", "parameters", "ours", "peers", "ratio", "target", "ok"):
        made.add_column(column, justify="right" if column in {"ours", "ratio"} else "left")
    for row, found, measured in lines:
        target = str(row.target or "")
        if not measured:
            made.add_row(row.name, "", "–", found["failure"], "", target, "NOT MEASURED")
            continue
        ours, *peers = measured
        made.add_row(
            row.name,
            ", ".join(f"{name} {value}" for name, value in row.parameters.items()),
            str(measured[ours]),
            "\n".join(f"{name}: {measured[name]}" for name in peers),
            "\n".join(f"{found['ratio'][name]:.2f}x" if name in found["ratio"] else "" for name in peers),
            target,
            {True: "yes", False: "NO", None: ""}[found["ok"]],
        )
    return made
