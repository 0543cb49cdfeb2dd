-- The processes that replicate journals, and the topics that each of them has taken.

-- name: create
-- `expires_ms` is on the server's clock in PostgreSQL, on the clock of the machine's start `boot` in SQLite.
CREATE TABLE replicators (
    owner       TEXT PRIMARY KEY,
    boot        TEXT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    progress    TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE replicator_leases (
    name   TEXT COLLATE "C" PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES replicators (owner) ON DELETE CASCADE
) WITHOUT ROWID;

-- include: process_leases.sql

-- part: processes
replicators

-- part: leases
replicator_leases

-- part: progress
progress
