"""The work that runs elsewhere: values that carry all they need, for whatever runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.archive import staging
from strandline.archive.files import Files
from strandline.archive.model import Harvest, StagedFile
from strandline.archive.staging import Sorting
from strandline.log.ranges import PartitionRange, read_range


@dataclass(frozen=True)
class Stage:
    """Read a range of a partition and write its rows into staged files."""

    files: Files
    directory: str
    sorting: Sorting
    part: PartitionRange

    def run(self) -> Harvest:
        batches = read_range(self.part)
        return staging.stage(self.files, self.directory, self.sorting, self.part.partition, batches)


@dataclass(frozen=True)
class Rewrite:
    """Make one staged file of several that follow each other; with a reason, one for the quarantine."""

    files: Files
    directory: str
    group: tuple[StagedFile, ...]
    reason: str = ""

    def run(self) -> StagedFile:
        if self.reason:
            return staging.quarantine(self.files, self.directory, self.group, self.reason)
        return staging.merge(self.files, self.directory, self.group)


class Runner(ABC):
    """Runs tasks and returns their results, in their order. One that fails fails all; a task may run twice."""

    @abstractmethod
    def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
        """What became of every range."""

    @abstractmethod
    def rewrite(self, tasks: Sequence[Rewrite]) -> list[StagedFile]:
        """The new files."""


class InProcess(Runner):
    """One after the other, here."""

    def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
        return [task.run() for task in tasks]

    def rewrite(self, tasks: Sequence[Rewrite]) -> list[StagedFile]:
        return [task.run() for task in tasks]
