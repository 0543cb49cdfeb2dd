-- name: version_before
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'announcements';

-- name: create
-- `changes` grows with every change except heartbeats; watchers compare it.
CREATE TABLE announcements (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    version   INTEGER NOT NULL,
    changes   INTEGER NOT NULL
);
INSERT INTO announcements VALUES (1, 0, 0);
-- A session is alive until `expires_ms` on the boot clock of the machine start `boot`. Statements that read locks
-- or members check this, because rows of expired sessions stay until the next write deletes them.
CREATE TABLE sessions (
    id          TEXT PRIMARY KEY,
    boot        TEXT NOT NULL,
    expires_ms  INTEGER NOT NULL
);
CREATE TABLE locks (
    name     TEXT PRIMARY KEY,
    session  TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    value    TEXT NOT NULL
);
CREATE TABLE members (
    node     TEXT PRIMARY KEY,
    session  TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    value    TEXT NOT NULL
);

-- name: remove_dead
DELETE FROM sessions WHERE boot <> ? OR expires_ms <= ?;

-- name: extend
UPDATE sessions SET expires_ms = ? WHERE id = ? RETURNING id;

-- name: begin
INSERT INTO sessions (id, boot, expires_ms) VALUES (?, ?, ?);

-- name: end
DELETE FROM sessions WHERE id = ?;

-- name: changed
UPDATE announcements SET changes = changes + 1;

-- name: version
SELECT version FROM announcements;

-- name: bump
UPDATE announcements SET version = version + 1, changes = changes + 1 RETURNING version;

-- name: join
-- Ids are unique to a process: an existing row is from an earlier session of the same process.
INSERT INTO members (node, session, value) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET session = excluded.session, value = excluded.value;

-- name: update
UPDATE members SET value = ? WHERE node = ? AND session = ? RETURNING node;

-- name: members
SELECT node, value FROM members
WHERE session IN (SELECT id FROM sessions WHERE boot = ? AND expires_ms > ?) ORDER BY node;

-- name: lock
INSERT INTO locks (name, session, value) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING name;

-- name: relock
UPDATE locks SET value = ? WHERE name = ? AND session = ? RETURNING name;

-- name: unlock
DELETE FROM locks WHERE name = ? AND session = ?;

-- name: locks
SELECT name, value FROM locks
WHERE session IN (SELECT id FROM sessions WHERE boot = ? AND expires_ms > ?) ORDER BY name;

-- name: visible_state
-- One row per live session, or one row without a session: everything that can change what other processes see.
SELECT changes, id, expires_ms FROM announcements LEFT JOIN sessions ON boot = ? AND expires_ms > ? ORDER BY id;
