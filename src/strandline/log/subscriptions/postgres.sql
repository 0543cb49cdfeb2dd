-- name: turn
-- One at a time makes the tables, of all rooms.
SELECT pg_advisory_xact_lock(hashtextextended('strandline', 0));

-- name: is_made
SELECT to_regclass('strandline.subscriptions') IS NOT NULL;

-- name: create
-- `number` is the order of creation; `version` is another one after every change of cursors, slots or streams.
-- Whoever changes anything of a subscription locks its row first.
CREATE SCHEMA IF NOT EXISTS strandline;
CREATE TABLE strandline.subscriptions (
    number       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    key          TEXT NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    event_types  TEXT[] NOT NULL,
    definition   TEXT NOT NULL,
    epoch        BIGINT NOT NULL DEFAULT 1,
    version      BIGINT NOT NULL DEFAULT 1
);
-- A stream lives until `expires_ms` on the server's clock, unless it has ended before.
CREATE TABLE strandline.subscription_streams (
    number           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    subscription_id  TEXT NOT NULL REFERENCES strandline.subscriptions (id) ON DELETE CASCADE,
    node             TEXT NOT NULL,
    epoch            BIGINT NOT NULL,
    direct           TEXT,
    expires_ms       BIGINT NOT NULL,
    ended_ms         BIGINT
);
CREATE INDEX subscription_streams_of ON strandline.subscription_streams (subscription_id);
CREATE INDEX subscription_streams_of_node ON strandline.subscription_streams (node);
-- The committed cursor of every partition, the stream that reads it, and the one that is to get it next.
CREATE TABLE strandline.subscription_cursors (
    subscription_id  TEXT NOT NULL REFERENCES strandline.subscriptions (id) ON DELETE CASCADE,
    event_type       TEXT COLLATE "C" NOT NULL,
    event_type_id    TEXT NOT NULL,
    partition        INTEGER NOT NULL,
    timeline         BIGINT NOT NULL,
    position         BIGINT NOT NULL,
    skipped          BIGINT NOT NULL DEFAULT 0,
    owner            TEXT,
    heir             TEXT,
    PRIMARY KEY (subscription_id, event_type, partition)
);
CREATE INDEX subscription_cursors_of ON strandline.subscription_cursors (owner);

-- name: now
-- One clock for all machines; tests have their own.
SELECT coalesce(%s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- name: lock
SELECT epoch FROM strandline.subscriptions WHERE id = %s FOR NO KEY UPDATE;

-- name: insert
INSERT INTO strandline.subscriptions (id, key, owner, event_types, definition) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (key) DO NOTHING RETURNING id;

-- name: find
SELECT definition FROM strandline.subscriptions WHERE key = %s;

-- name: get
SELECT definition, epoch FROM strandline.subscriptions WHERE id = %s;

-- name: list
SELECT definition FROM strandline.subscriptions
WHERE (%s::text IS NULL OR owner = %s) AND event_types @> %s::text[]
ORDER BY number DESC LIMIT %s OFFSET %s;

-- name: update
UPDATE strandline.subscriptions SET definition = %s WHERE id = %s RETURNING id;

-- name: delete
DELETE FROM strandline.subscriptions WHERE id = %s RETURNING id;

-- name: touch
UPDATE strandline.subscriptions SET version = %s WHERE id = %s;

-- name: versions
SELECT id, version FROM strandline.subscriptions WHERE id = ANY (%s);

-- name: raise_epoch
UPDATE strandline.subscriptions SET epoch = epoch + 1 WHERE id = %s RETURNING epoch;

-- name: shares
SELECT event_type_id, partition, event_type, timeline, position, skipped, owner, heir
FROM strandline.subscription_cursors WHERE subscription_id = %s ORDER BY event_type, partition;

-- name: add_share
INSERT INTO strandline.subscription_cursors
    (subscription_id, event_type, event_type_id, partition, timeline, position)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING RETURNING partition;

-- name: set_share
INSERT INTO strandline.subscription_cursors
    (subscription_id, event_type, event_type_id, partition, timeline, position)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (subscription_id, event_type, partition) DO UPDATE
SET event_type_id = excluded.event_type_id, timeline = excluded.timeline, position = excluded.position, skipped = 0;

-- name: drop_old_incarnations
-- What is left of an event type that was deleted, once one partition of its successor is read.
DELETE FROM strandline.subscription_cursors
WHERE subscription_id = %s AND event_type = %s AND event_type_id <> %s;

-- name: assign
UPDATE strandline.subscription_cursors SET owner = %s, heir = %s
WHERE subscription_id = %s AND event_type_id = %s AND partition = %s;

-- name: skip
UPDATE strandline.subscription_cursors SET timeline = %s, position = %s, skipped = skipped + %s
WHERE subscription_id = %s AND event_type_id = %s AND partition = %s AND timeline = %s AND position = %s
RETURNING partition;

-- name: committed
SELECT timeline, position FROM strandline.subscription_cursors
WHERE subscription_id = %s AND event_type = %s AND partition = %s;

-- name: commit
UPDATE strandline.subscription_cursors SET timeline = %s, position = %s
WHERE subscription_id = %s AND event_type = %s AND partition = %s;

-- name: add_stream
INSERT INTO strandline.subscription_streams (id, subscription_id, node, epoch, direct, expires_ms)
VALUES (%s, %s, %s, %s, %s, %s);

-- name: members
SELECT id, direct FROM strandline.subscription_streams
WHERE subscription_id = %s AND ended_ms IS NULL
    AND expires_ms > coalesce(%s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY number;

-- name: stream
SELECT epoch, coalesce(ended_ms, expires_ms) FROM strandline.subscription_streams
WHERE id = %s AND subscription_id = %s;

-- name: subscription_of
SELECT subscription_id FROM strandline.subscription_streams WHERE id = %s;

-- name: held
-- A living stream has at least one row; one without slots has a row of nothing.
SELECT c.event_type_id, c.partition, c.event_type, c.timeline, c.position, c.skipped, c.owner, c.heir
FROM strandline.subscription_streams s LEFT JOIN strandline.subscription_cursors c
    ON c.subscription_id = s.subscription_id AND c.owner = s.id
WHERE s.id = %s AND s.ended_ms IS NULL
    AND s.expires_ms > coalesce(%s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY c.event_type, c.partition;

-- name: renew
UPDATE strandline.subscription_streams SET expires_ms = %s
WHERE node = %s AND ended_ms IS NULL AND expires_ms > %s AND id = ANY (%s);

-- name: dead
SELECT DISTINCT subscription_id FROM strandline.subscription_streams
WHERE ended_ms IS NULL AND expires_ms <= %s;

-- name: bury
-- A stream whose lease ran out ended then.
UPDATE strandline.subscription_streams SET ended_ms = expires_ms
WHERE subscription_id = %s AND ended_ms IS NULL AND expires_ms <= %s
RETURNING id;

-- name: end_stream
UPDATE strandline.subscription_streams SET ended_ms = %s WHERE id = %s AND ended_ms IS NULL RETURNING id;

-- name: end_streams
UPDATE strandline.subscription_streams SET ended_ms = %s WHERE subscription_id = %s AND ended_ms IS NULL;

-- name: forget_streams
DELETE FROM strandline.subscription_streams WHERE ended_ms < %s;

-- name: release
UPDATE strandline.subscription_cursors SET owner = heir, heir = NULL
WHERE owner = %s AND event_type_id = %s AND partition = %s AND heir IS NOT NULL
RETURNING partition;
