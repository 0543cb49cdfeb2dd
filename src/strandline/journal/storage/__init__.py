"""Where replicated journals are stored: the port and its adapters."""

from strandline.journal.storage.port import JournalStore, StoredJournal

__all__ = ["JournalStore", "StoredJournal"]
