"""A file of JSON lines that survives a kill of its writer."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class LineFile:
    """Every line is complete, also after a kill."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
