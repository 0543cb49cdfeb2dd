-- name: create
-- `number` is the order of creation; `version` grows with every change of cursors, slots or streams.
CREATE TABLE IF NOT EXISTS subscriptions (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    key         TEXT NOT NULL UNIQUE,
    owner       TEXT NOT NULL,
    definition  TEXT NOT NULL,
    epoch       INTEGER NOT NULL DEFAULT 1,
    version     INTEGER NOT NULL DEFAULT 1
);
-- A stream lives until `expires_ms` on the clock of the machine's start `boot`, unless it has ended before.
CREATE TABLE IF NOT EXISTS subscription_streams (
    number           INTEGER PRIMARY KEY AUTOINCREMENT,
    id               TEXT NOT NULL UNIQUE,
    subscription_id  TEXT NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    node             TEXT NOT NULL,
    epoch            INTEGER NOT NULL,
    direct           TEXT,
    boot             TEXT NOT NULL,
    expires_ms       INTEGER NOT NULL,
    ended_ms         INTEGER
);
CREATE INDEX IF NOT EXISTS subscription_streams_of ON subscription_streams (subscription_id);
-- The committed cursor of every partition, the stream that reads it, and the one that is to get it next.
CREATE TABLE IF NOT EXISTS subscription_cursors (
    subscription_id  TEXT NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    event_type       TEXT NOT NULL,
    event_type_id    TEXT NOT NULL,
    partition        INTEGER NOT NULL,
    timeline         INTEGER NOT NULL,
    position         INTEGER NOT NULL,
    skipped          INTEGER NOT NULL DEFAULT 0,
    owner            TEXT,
    heir             TEXT,
    PRIMARY KEY (subscription_id, event_type, partition)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS subscription_cursors_of ON subscription_cursors (owner);

-- name: insert
INSERT INTO subscriptions (id, key, owner, definition) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO NOTHING RETURNING id;

-- name: find
SELECT definition FROM subscriptions WHERE key = ?;

-- name: get
SELECT definition, epoch FROM subscriptions WHERE id = ?;

-- name: list
SELECT definition FROM subscriptions s
WHERE (?1 IS NULL OR owner = ?1) AND NOT EXISTS (
    SELECT 1 FROM json_each(?2) asked
    WHERE asked.value NOT IN (SELECT value FROM json_each(s.definition, '$.event_types'))
)
ORDER BY number DESC LIMIT ?3 OFFSET ?4;

-- name: update
UPDATE subscriptions SET definition = ? WHERE id = ? RETURNING id;

-- name: delete
DELETE FROM subscriptions WHERE id = ? RETURNING id;

-- name: touch
UPDATE subscriptions SET version = version + 1 WHERE id = ?;

-- name: versions
SELECT id, version FROM subscriptions WHERE id IN (SELECT value FROM json_each(?));

-- name: raise_epoch
UPDATE subscriptions SET epoch = epoch + 1 WHERE id = ? RETURNING epoch;

-- name: shares
SELECT event_type_id, partition, event_type, timeline, position, skipped, owner, heir
FROM subscription_cursors WHERE subscription_id = ? ORDER BY event_type, partition;

-- name: add_share
INSERT INTO subscription_cursors (subscription_id, event_type, event_type_id, partition, timeline, position)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING partition;

-- name: set_share
INSERT INTO subscription_cursors (subscription_id, event_type, event_type_id, partition, timeline, position)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET event_type_id = excluded.event_type_id, timeline = excluded.timeline,
    position = excluded.position, skipped = 0;

-- name: drop_old_incarnations
-- What is left of an event type that was deleted, once one partition of its successor is read.
DELETE FROM subscription_cursors WHERE subscription_id = ? AND event_type = ? AND event_type_id <> ?;

-- name: assign
UPDATE subscription_cursors SET owner = ?, heir = ?
WHERE subscription_id = ? AND event_type_id = ? AND partition = ?;

-- name: skip
UPDATE subscription_cursors SET timeline = ?, position = ?, skipped = skipped + ?
WHERE subscription_id = ? AND event_type_id = ? AND partition = ? AND timeline = ? AND position = ?
RETURNING partition;

-- name: committed
SELECT timeline, position FROM subscription_cursors WHERE subscription_id = ? AND event_type = ? AND partition = ?;

-- name: commit
UPDATE subscription_cursors SET timeline = ?, position = ?
WHERE subscription_id = ? AND event_type = ? AND partition = ?;

-- name: add_stream
INSERT INTO subscription_streams (id, subscription_id, node, epoch, direct, boot, expires_ms)
SELECT ?1, id, ?3, epoch, ?4, ?5, ?6 FROM subscriptions WHERE id = ?2
RETURNING id;

-- name: members
SELECT id, direct FROM subscription_streams
WHERE subscription_id = ? AND ended_ms IS NULL AND boot = ? AND expires_ms > ?
ORDER BY number;

-- name: stream
SELECT epoch, coalesce(ended_ms, expires_ms) FROM subscription_streams
WHERE id = ? AND subscription_id = ? AND boot = ?;

-- name: held
-- A living stream has at least one row; one without slots has a row of nothing.
SELECT c.event_type_id, c.partition, c.event_type, c.timeline, c.position, c.skipped, c.owner, c.heir
FROM subscription_streams s LEFT JOIN subscription_cursors c
    ON c.subscription_id = s.subscription_id AND c.owner = s.id
WHERE s.id = ? AND s.ended_ms IS NULL AND s.boot = ? AND s.expires_ms > ?
ORDER BY c.event_type, c.partition;

-- name: renew
UPDATE subscription_streams SET expires_ms = ?
WHERE node = ? AND ended_ms IS NULL AND boot = ? AND expires_ms > ? AND id IN (SELECT value FROM json_each(?));

-- name: bury
-- A stream whose lease ran out ended then; one of an earlier start of the machine, long ago.
UPDATE subscription_streams SET ended_ms = expires_ms
WHERE ended_ms IS NULL AND (boot <> ? OR expires_ms <= ?)
RETURNING subscription_id;

-- name: end_stream
UPDATE subscription_streams SET ended_ms = ? WHERE id = ? AND ended_ms IS NULL RETURNING subscription_id;

-- name: end_streams
UPDATE subscription_streams SET ended_ms = ? WHERE subscription_id = ? AND ended_ms IS NULL;

-- name: forget_streams
DELETE FROM subscription_streams WHERE ended_ms IS NOT NULL AND (boot <> ? OR ended_ms < ?);

-- name: release
UPDATE subscription_cursors SET owner = heir, heir = NULL
WHERE owner = ? AND event_type_id = ? AND partition = ? AND heir IS NOT NULL
RETURNING subscription_id;
