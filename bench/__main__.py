"""`python -m bench [word of a row's name …]`: prints one table and writes `bench/results.json`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import machine, results, slow_disk
from bench.rows import ALL
from bench.runner import Measured, Row, Scale, measure

_BUILD = Path(__file__).parents[1] / "build"
_QUICK = Scale(0.01)


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    rows = [row for row in ALL if all(word in row.name for word in options.words)]
    if not rows:
        print("no row has such a name; the rows are:", *(row.name for row in ALL), sep="\n  ")
        return 2
    file = results.FILE
    if options.fsync_ms:
        slow_disk.restart(options.fsync_ms, options.directory, arguments)
        file = slow_disk.results(options.fsync_ms)
    console = Console(width=None if sys.stdout.isatty() else 160)
    lines = []
    for row in rows:
        found, measured = _measured(row, options)
        lines.append((row, found, measured))
        if not options.quick:
            results.save(found, ALL, file)  # at once: the remaining rows may take an hour
            console.print(f"{row.name}: {found.get('failure', 'measured')}", style="dim")
    console.print(results.table(lines))
    return 0 if all(measured for _, _, measured in lines) else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure only rows whose name contains all of these words")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, after one warm-up round")
    parser.add_argument("--quick", action="store_true", help="do a hundredth of the work, to check that it runs")
    parser.add_argument(
        "--fsync-ms", type=float, help="as on a disk whose fsync takes so much longer; needs a C compiler"
    )
    parser.add_argument("--directory", type=Path, default=_BUILD, help="place for data: a disk, not memory")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    return options


def _measured(row: Row, options: argparse.Namespace) -> tuple[dict[str, Any], Mapping[str, Measured]]:
    """A row that fails is reported as such. The other rows are measured."""
    scale, rounds = (_QUICK, 1) if options.quick else (Scale(1), options.rounds)
    facts = {"machine": machine.describe(options.directory), "rounds": rounds}
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as own:
            measured = measure(row, Path(own), scale, rounds)
        return {**results.result(row, measured), **facts}, measured
    except Exception as error:  # noqa: BLE001 - reported as the failure of this row
        return {**results.failure(row, error), **facts}, {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
