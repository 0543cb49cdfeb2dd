"""A second process that replicates into a store: `journal_worker.py <address>`.

A test calls the functions below through `peers`.
"""

from __future__ import annotations

import sys

from journal_place import JournalPlace

from peers import serve

if __name__ == "__main__":
    serve(JournalPlace(sys.argv[1]).open())
