"""The journals as the server in the same process uses them."""

from __future__ import annotations

from abc import abstractmethod

from strandline.journal.model import JournalTopic
from strandline.journal.room import Journals


class ServedJournals(Journals):
    @abstractmethod
    def put(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        storage: str | None = None,
        kafka_topic: str | None = None,
    ) -> tuple[JournalTopic, bool]:
        """`create`, and whether this call has created it."""
