-- The statements of `ProcessLeases`. A room's file includes this file and has three parts: the names of its tables,
-- `processes` and `leases`, and of the column `progress`. `expires_ms` is on the server's clock in PostgreSQL, on the
-- clock of the machine's start `boot` in SQLite.

-- name: lock (sqlite)
-- The transaction has the write lock already.
SELECT 1;

-- name: lock (postgres)
-- An advisory lock until the commit, because there may be no row to lock yet.
SELECT pg_advisory_xact_lock(hashtextextended(:name, :seed));

-- name: renew
INSERT INTO {processes} (owner, boot, expires_ms, {progress}) VALUES (:owner, :boot, :expires_ms, :progress)
ON CONFLICT (owner) DO UPDATE SET boot = excluded.boot, expires_ms = excluded.expires_ms,
    {progress} = excluded.{progress};

-- name: expire_owners
DELETE FROM {processes} WHERE boot <> :boot OR expires_ms <= :now_ms;

-- name: owners
SELECT owner, {progress} FROM {processes} WHERE boot = :boot
    AND expires_ms > coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY owner;

-- name: has_lease
SELECT 1 FROM {leases} l JOIN {processes} o ON o.owner = l.owner
WHERE l.name = :name AND l.owner = :owner AND o.boot = :boot
    AND o.expires_ms > coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- name: take
INSERT INTO {leases} AS l (name, owner) SELECT :name, owner FROM {processes} WHERE owner = :owner
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner WHERE l.owner = excluded.owner
RETURNING name;

-- name: release
DELETE FROM {leases} WHERE owner = :owner AND name = :name;

-- name: leave
DELETE FROM {processes} WHERE owner = :owner;
