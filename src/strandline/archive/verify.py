"""Whether an hour in the files is what its flag and the ledger say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.archive import flags
from strandline.archive.files import Digest, Files
from strandline.archive.flags import ListedFile, Manifest
from strandline.archive.layout import Layout
from strandline.archive.ledger import Ledger
from strandline.clock import to_rfc3339
from strandline.errors import NotFound


class HourCheck(msgspec.Struct, frozen=True):
    """What was found of an hour; it is in order when there are no problems."""

    event_type: str
    hour: str
    revision: int
    files: int
    rows: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(files: Files, ledger: Ledger, layout: Layout, hour_ms: int) -> HourCheck:
    """Hold an hour's files against its flag, and the flag against the ledger. Reads every file."""
    beside, above = (flags.read(files, path) for path in layout.flags(hour_ms))
    problems = [*_of_flags(beside, above, _decided(ledger, layout.event_type, hour_ms))]
    flag = above or beside
    if flag is not None:
        folder = layout.data(hour_ms)
        for listed in flag.files:
            problems += _of_file(files, f"{folder}/{listed.name}", listed)
        problems += _unlisted(files, folder, flag)
    name, hour = layout.event_type, to_rfc3339(hour_ms)
    if flag is None:
        return HourCheck(name, hour, 0, 0, 0, tuple(problems))
    return HourCheck(name, hour, flag.revision, len(flag.files), flag.rows, tuple(problems))


def _decided(ledger: Ledger, event_type: str, hour_ms: int) -> Manifest | None:
    """The flag as it should be."""
    for hour in ledger.hours.between(hour_ms, hour_ms + 1, event_type):
        if hour.revision:
            return flags.manifest(hour, ledger.files(event_type, hour_ms))
    return None


def _of_flags(beside: Manifest | None, above: Manifest | None, decided: Manifest | None) -> Iterator[str]:
    if decided is None:
        yield "the ledger has no flag of it"
    for where, flag in (("the data directory", beside), ("the directory above", above)):
        if flag is None:
            yield f"there is no flag in {where}"
        elif decided is not None and flag != decided:
            yield f"the flag in {where} has revision {flag.revision} and is not the ledger's {decided.revision}"
    if above is not None and above.rows != sum(file.rows for file in above.files):
        yield "the rows of the files do not add up to the flag's"


def _of_file(files: Files, path: str, listed: ListedFile) -> Sequence[str]:
    try:
        if files.digest(path) != Digest(listed.bytes, listed.sha256):
            return [f"{listed.name} is not the file that was published"]
        with files.open(path) as file:
            rows = pq.read_metadata(file).num_rows
    except NotFound:
        return [f"{listed.name} is missing"]
    except pa.ArrowException as error:
        return [f"{listed.name} is not Parquet: {error}"]
    return [] if rows == listed.rows else [f"{listed.name} has {rows} rows, not {listed.rows}"]


def _unlisted(files: Files, folder: str, flag: Manifest) -> Iterator[str]:
    known = {listed.name for listed in flag.files}
    for entry in files.entries(folder):
        if entry.name.endswith(".parquet") and entry.name not in known:
            yield f"{entry.name} is not in the flag"
