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

-- name: lock (sqlite)
-- The transaction has the write lock already.
SELECT 1;

-- name: lock (postgres)
SELECT pg_advisory_xact_lock(hashtextextended(:name, :seed));

-- name: renew
INSERT INTO replicators (owner, boot, expires_ms, progress) VALUES (:owner, :boot, :expires_ms, :progress)
ON CONFLICT (owner) DO UPDATE SET boot = excluded.boot, expires_ms = excluded.expires_ms,
    progress = excluded.progress;

-- name: expire_owners
DELETE FROM replicators WHERE boot <> :boot OR expires_ms <= :now_ms;

-- name: owners
SELECT owner, progress FROM replicators WHERE boot = :boot
    AND expires_ms > coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY owner;

-- name: has_lease
SELECT 1 FROM replicator_leases l JOIN replicators o ON o.owner = l.owner
WHERE l.name = :name AND l.owner = :owner AND o.boot = :boot
    AND o.expires_ms > coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- name: take
INSERT INTO replicator_leases AS l (name, owner) SELECT :name, owner FROM replicators WHERE owner = :owner
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner WHERE l.owner = excluded.owner
RETURNING name;

-- name: release
DELETE FROM replicator_leases WHERE owner = :owner AND name = :name;

-- name: leave
DELETE FROM replicators WHERE owner = :owner;
