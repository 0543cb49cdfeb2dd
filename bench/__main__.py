"""`python -m bench [part of a row's name …]`: one table, and `bench/results.json` after a full run."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.rows import ALL
from bench.runner import Measured, Row, Scale, measure

_HERE = Path(__file__).parent
_QUICK = Scale(0.01)


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    rows = [row for row in ALL if all(word in row.name for word in options.words)]
    if not rows:
        print("no row has such a name; there are:", *(row.name for row in ALL), sep="\n  ")
        return 2
    scale, rounds = (_QUICK, 1) if options.quick else (Scale(1), options.rounds)
    console = Console(width=None if sys.stdout.isatty() else 160)
    facts = machine.describe(options.directory)
    results = []
    for row in rows:
        results.append(_measured(row, options.directory, scale, rounds))
        if not options.quick:
            console.print(f"{row.name}: {results[-1].get('failure', 'measured')}", style="dim")
    console.print(_table(rows, results))
    if not options.words and not options.quick:
        report = {"machine": facts, "rounds": rounds, "rows": results}
        (_HERE / "results.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return 1 if any("failure" in result for result in results) else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure only rows whose name has all of these words")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that warms up")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the work: does it run at all?")
    parser.add_argument(
        "--directory", type=Path, default=_HERE.parent / "build", help="where data goes: a disk, not memory"
    )
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    return options


def _measured(row: Row, directory: Path, scale: Scale, rounds: int) -> dict[str, Any]:
    """A row that cannot be measured here is reported as such; it does not take the others with it."""
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=directory) as own:
            return _result(row, measure(row, Path(own), scale, rounds))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's
        return {"row": row.name, "parameters": dict(row.parameters), "failure": f"{type(error).__name__}: {error}"}


def _result(row: Row, measured: Mapping[str, Measured]) -> dict[str, Any]:
    ours = measured["ours"].median
    peers = {name: found.median for name, found in measured.items() if name != "ours"}
    first = next(iter(peers.values()), None)
    return {
        "row": row.name,
        "parameters": dict(row.parameters),
        "events_per_second": {name: round(found.median) for name, found in measured.items()},
        "rounds": {name: [round(rate) for rate in found.rates] for name, found in measured.items()},
        "cpu_us_per_event": {name: round(found.cpu_us, 2) for name, found in measured.items()},
        "ratio": {name: round(ours / rate, 2) for name, rate in peers.items()},
        "target": str(row.target) if row.target else None,
        "ok": row.target.met(ours, first) if row.target else None,
    }


def _table(rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="events per second, median", show_lines=True)
    for column in ("row", "parameters", "ours", "peers", "ratio", "target", "ok"):
        table.add_column(column, justify="right" if column in {"ours", "ratio"} else "left")
    for row, result in zip(rows, results, strict=True):
        if "failure" in result:
            table.add_row(row.name, "", "–", result["failure"], "", str(row.target or ""), "NOT MEASURED")
            continue
        rates = result["events_per_second"]
        peers = [name for name in rates if name != "ours"]
        table.add_row(
            row.name,
            ", ".join(f"{name} {value}" for name, value in row.parameters.items()),
            f"{rates['ours']:,}",
            "\n".join(f"{name}: {rates[name]:,}" for name in peers),
            "\n".join(f"{result['ratio'][name]:.2f}x" for name in peers),
            result["target"] or "",
            {True: "yes", False: "NO", None: ""}[result["ok"]],
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
