"""Histories of entities: appended to the log, replicated to a store, read from both."""

from typing import TYPE_CHECKING

from strandline.lazy import lazy

if TYPE_CHECKING:
    from strandline.journal.aggregate import Aggregate, Aggregates
    from strandline.journal.model import Appended, JournalEvent, JournalTopic, NewEvent, Payload, Pointer, Snapshot
    from strandline.journal.room import Journal, Journals
else:
    # Every command reads the settings of the journal, and few need more of it.
    _HOMES = {
        "aggregate": ("Aggregate", "Aggregates"),
        "model": ("Appended", "JournalEvent", "JournalTopic", "NewEvent", "Payload", "Pointer", "Snapshot"),
        "room": ("Journal", "Journals"),
    }
    __getattr__, __dir__ = lazy(
        __name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}
    )

__all__ = [
    "Aggregate",
    "Aggregates",
    "Appended",
    "Journal",
    "JournalEvent",
    "JournalTopic",
    "Journals",
    "NewEvent",
    "Payload",
    "Pointer",
    "Snapshot",
]
