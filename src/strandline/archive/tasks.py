"""Tasks as values that can be sent to another process, and the port that runs them."""

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
    """Merge consecutive staged files into one; with a reason, into a quarantine file."""

    files: Files
    directory: str
    group: tuple[StagedFile, ...]
    reason: str = ""

    def run(self) -> StagedFile:
        return staging.rewrite(self.files, self.directory, self.group, self.reason)


class Runner(ABC):
    """Runs tasks and returns their results in order. If one task fails, the call fails; a task may run twice."""

    @abstractmethod
    def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
        """Stage every range and return the result of each."""

    @abstractmethod
    def rewrite(self, tasks: Sequence[Rewrite]) -> list[StagedFile]:
        """Rewrite every group and return the new files."""


class InProcess(Runner):
    """Runs tasks one after the other in this process."""

    def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
        return [task.run() for task in tasks]

    def rewrite(self, tasks: Sequence[Rewrite]) -> list[StagedFile]:
        return [task.run() for task in tasks]
