"""Steps 2 to 4 of the archive: the decision in the ledger, then the publication of the files it lists.

Before the decision everything is in staging and can be deleted. After it the files will be published, if this
process crashes by the next one.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import structs

from strandline import failpoints
from strandline.archive import flags, layout, staging
from strandline.archive.collector import Collection
from strandline.archive.files import Digest, Files
from strandline.archive.ledger import Ledger
from strandline.archive.model import ArchivedFile, Claim, Counts, Decision, Kind, StagedFile, StoredPartition
from strandline.archive.options import ArchiveOptions
from strandline.archive.tasks import Rewrite, Runner

# Fewer files are not merged: reading and writing them again would cost more than it saves.
_MANY = 4
_AT_ONCE = 8


class FilePublisher:
    def __init__(self, ledger: Ledger, files: Files, runner: Runner, options: ArchiveOptions) -> None:
        self._ledger = ledger
        self._files = files
        self._runner = runner
        self._options = options
        self._layout = options.layout

    def new_directory(self, claim: Claim) -> str:
        return self._layout.staging(f"{claim.epoch}-{uuid.uuid4().hex}")

    def decide(
        self,
        claim: Claim,
        collection: Collection,
        before: Mapping[int, StoredPartition],
        stored: Mapping[int, StoredPartition],
        read_ms: int,
    ) -> None:
        """List the collected files in the ledger with the new state of every partition, then publish them."""
        listed, dropped = self._listed(claim, collection.files, read_ms)
        rows = Counter[Kind]()
        for file in listed:
            rows[file.kind] += file.rows
        counts = Counts(
            collection.rows, rows["data"], rows["late"], rows["quarantine"], dropped, collection.skipped
        )
        start = {p: before[p].position if p in before else None for p in stored}
        failpoints.hit("archive.decide")
        self._ledger.decide(claim, Decision(start, stored, tuple(listed), counts, read_ms, collection.gaps))
        failpoints.hit("archive.decided")
        self.roll_forward(claim)

    def _listed(self, claim: Claim, staged: Sequence[StagedFile], read_ms: int) -> tuple[list[ArchivedFile], int]:
        """The files under their final names, and the number of late rows that are dropped."""
        flagged = self._flagged(staged)
        late = [file for file in staged if file.hour_ms in flagged]
        usual = [file for file in staged if file.hour_ms not in flagged]
        directory = self.new_directory(claim)
        named: list[tuple[StagedFile, Kind]] = [(file, file.kind) for file in self._merged(directory, usual)]
        if self._options.late == "append":
            named += [(file, "late") for file in self._merged(directory, late)]
        elif self._options.late == "quarantine":
            moved = self._rewritten(directory, [(file,) for file in late], staging.LATE)
            named += [(file, file.kind) for file in moved]
        dropped = sum(file.rows for file in late) if self._options.late == "drop" else 0
        return [self._named(claim, file, kind, read_ms) for file, kind in named], dropped

    def _flagged(self, staged: Sequence[StagedFile]) -> set[int]:
        """The hours of these files that are flagged already."""
        hours = [file.hour_ms for file in staged if file.kind == "data"]
        if not hours:
            return set()
        known = self._ledger.hours.between(min(hours), max(hours) + 1, self._options.event_type)
        return {hour.hour_ms for hour in known if hour.revision}

    def _merged(self, directory: str, staged: Sequence[StagedFile]) -> list[StagedFile]:
        """The files. If a partition has many small ones for an hour, they are merged."""
        kept: list[StagedFile] = []
        groups: list[tuple[StagedFile, ...]] = []
        for files in _by_hour(staged).values():
            for group in packs(files, self._options.settings.file_bytes):
                groups.append(group) if len(group) > 1 else kept.extend(group)
        return kept + self._rewritten(directory, groups)

    def _rewritten(
        self, directory: str, groups: Sequence[tuple[StagedFile, ...]], reason: str = ""
    ) -> list[StagedFile]:
        if not groups:
            return []
        failpoints.hit("archive.rewrite")
        return self._runner.rewrite([Rewrite(self._files, directory, group, reason) for group in groups])

    def _named(self, claim: Claim, file: StagedFile, kind: Kind, read_ms: int) -> ArchivedFile:
        place = (file.partition, file.timeline, file.first, file.last)
        name = layout.file_name(claim.event_type, claim.incarnation, kind, place)
        if kind == "quarantine":
            path = self._layout.quarantine(read_ms, name)
        else:
            path = f"{self._layout.data(file.hour_ms)}/{name}"
        return ArchivedFile(**structs.asdict(file) | {"path": path, "kind": kind, "staged": file.path})

    def roll_forward(self, claim: Claim) -> None:
        """Publish all decided files, also those that an earlier process decided."""
        waiting = self._ledger.publishing(claim.event_type)
        if waiting:
            with ThreadPoolExecutor(min(_AT_ONCE, len(waiting))) as pool:
                list(pool.map(self._publish, waiting))
            for hour_ms in sorted({file.hour_ms for file in waiting if file.kind == "late"}):
                failpoints.hit("archive.late")
                flags.write_late(self._files, self._layout, hour_ms)
            failpoints.hit("archive.publish-all")
            self._ledger.published(claim, [file.path for file in waiting])
        failpoints.hit("archive.published")

    def _publish(self, file: ArchivedFile) -> None:
        failpoints.hit("archive.publish")
        self._files.publish(file.staged, file.path, Digest(file.bytes, file.sha256))

    def sweep(self, claim: Claim) -> None:
        """Delete what was staged under this claim or an earlier one, except decided files."""
        failpoints.hit("archive.sweep")
        needed = {file.staged.rsplit("/", 1)[0] for file in self._ledger.publishing(claim.event_type)}
        for entry in self._files.entries(self._layout.staging()):
            path = self._layout.staging(entry.name)
            epoch = entry.name.partition("-")[0]
            if path not in needed and epoch.isdecimal() and int(epoch) <= claim.epoch:
                self._files.delete_tree(path)


def _by_hour(staged: Iterable[StagedFile]) -> dict[tuple[object, ...], list[StagedFile]]:
    """Files that may be merged: of the same partition, timeline and hour, in the order of their offsets."""
    found: dict[tuple[object, ...], list[StagedFile]] = defaultdict(list)
    for file in sorted(staged, key=lambda file: file.first):
        found[file.kind, file.hour_ms, file.partition, file.timeline].append(file)
    return found


def packs(files: Sequence[StagedFile], file_bytes: int) -> list[tuple[StagedFile, ...]]:
    """Groups of consecutive files, each to be merged into one of about that size; few files are not merged."""
    if len(files) < _MANY:
        return [(file,) for file in files]
    found: list[list[StagedFile]] = [[]]
    for file in files:
        if found[-1] and sum(one.bytes for one in found[-1]) + file.bytes > file_bytes:
            found.append([])
        found[-1].append(file)
    return [tuple(group) for group in found]
