-- name: version_before
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'announcements';

-- name: create
-- `changes` grows with every change, so that watchers can tell them from heartbeats.
CREATE TABLE announcements (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    version   INTEGER NOT NULL,
    changes   INTEGER NOT NULL
);
INSERT INTO announcements VALUES (1, 0, 0);
-- A session lives until `expires_ms` on the clock of the machine's start `boot`. Every statement that reads locks
-- or members asks for that; rows of dead sessions are only waiting for somebody to remove them.
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
-- Ids are used once: whoever has this one was an earlier session of the same process.
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

-- name: look
-- One row per live session, or one without: all that can change what others see.
SELECT changes, id, expires_ms FROM announcements LEFT JOIN sessions ON boot = ? AND expires_ms > ? ORDER BY id;
