-- The journals of adopted topics to which a node appends now.

-- name: create
-- `expires_ms` is on the server's clock in PostgreSQL, on the clock of the machine's start `boot` in SQLite.
CREATE TABLE journal_lock (
    name        TEXT COLLATE "C" PRIMARY KEY,
    owner       TEXT NOT NULL,
    boot        TEXT NOT NULL,
    expires_ms  BIGINT NOT NULL
) WITHOUT ROWID;

-- part: now_ms
coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)

-- name: take
-- Nothing is returned if another owner has the lock.
INSERT INTO journal_lock AS l (name, owner, boot, expires_ms)
VALUES (:name, :owner, :boot, {now_ms} + :lease_ms)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, boot = excluded.boot, expires_ms = excluded.expires_ms
WHERE l.owner = excluded.owner OR l.boot <> excluded.boot OR l.expires_ms <= {now_ms}
RETURNING name;

-- name: release
DELETE FROM journal_lock WHERE name = :name AND owner = :owner;
