"""A second process that replicates into Cassandra: `cassandra_worker.py <address>`."""

from __future__ import annotations

import sys

from peers import serve
from strandline.engine.cassandra import CassandraSession
from strandline.journal.storage.cassandra import CassandraJournalStore

if __name__ == "__main__":
    serve(CassandraJournalStore(CassandraSession(sys.argv[1])))
