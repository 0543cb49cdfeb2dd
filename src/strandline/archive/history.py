"""The values of archived files, for jobs that read what the log does not have any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.archive import parquet
from strandline.archive.files import Files


@dataclass(frozen=True)
class ArchivedValues:
    """A published file, as a value that another process can read."""

    files: Files
    path: str

    def values(self) -> Iterator[bytes | None]:
        for rows in parquet.read(self.files, self.path):
            for text in rows["value"].to_pylist():
                yield None if text is None else text.encode()
