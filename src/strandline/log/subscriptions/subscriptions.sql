-- `number` is the order of creation; `version` differs after every change of cursors, slots or streams.
-- A transaction that changes a subscription locks its row first.

-- name: version_before (sqlite)
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'subscriptions';

-- name: version_before (postgres)
SELECT CASE WHEN to_regclass('subscriptions') IS NULL THEN 0 ELSE 1 END;

-- name: create
CREATE TABLE subscriptions (
    number       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    key          TEXT NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    event_types  TEXT[] NOT NULL,
    definition   TEXT NOT NULL,
    epoch        BIGINT NOT NULL DEFAULT 1,
    version      BIGINT NOT NULL DEFAULT 1
);
-- A stream is alive until `expires_ms`, unless it has ended before. In PostgreSQL this is a time on the server's
-- clock, in SQLite a time on the boot clock of the machine start `boot`. `kept`: the slots that a stream had when it
-- ended, which it may still commit for a while.
CREATE TABLE subscription_streams (
    number           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    subscription_id  TEXT NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    node             TEXT NOT NULL,
    epoch            BIGINT NOT NULL,
    direct           TEXT,
    boot             TEXT NOT NULL DEFAULT '',
    expires_ms       BIGINT NOT NULL,
    ended_ms         BIGINT,
    kept             TEXT
);
CREATE INDEX subscription_streams_of ON subscription_streams (subscription_id);
CREATE INDEX subscription_streams_of_node ON subscription_streams (node);
-- The committed cursor of every partition, the stream that reads it, and the stream that gets it next.
CREATE TABLE subscription_cursors (
    subscription_id  TEXT NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    event_type       TEXT COLLATE "C" NOT NULL,
    event_type_id    TEXT NOT NULL,
    partition        INTEGER NOT NULL,
    timeline         BIGINT NOT NULL,
    position         BIGINT NOT NULL,
    skipped          BIGINT NOT NULL DEFAULT 0,
    owner            TEXT,
    heir             TEXT,
    PRIMARY KEY (subscription_id, event_type, partition)
) WITHOUT ROWID;
CREATE INDEX subscription_cursors_of ON subscription_cursors (owner);

-- name: migration_2 (sqlite)
-- As in PostgreSQL: a column for the names of event types; the owner as JSON text, which can hold any character.
ALTER TABLE subscriptions ADD COLUMN event_types TEXT NOT NULL DEFAULT '[]';
UPDATE subscriptions SET event_types = definition -> '$.event_types', owner = definition -> '$.owning_application';
CREATE INDEX subscription_streams_of_node ON subscription_streams (node);

-- name: migration_2 (postgres)
-- As in SQLite, where leases expire on the boot clock; in PostgreSQL they always expire on the server's clock.
ALTER TABLE subscription_streams ADD COLUMN boot TEXT NOT NULL DEFAULT '';

-- name: migration_3
ALTER TABLE subscription_streams ADD COLUMN kept TEXT;

-- name: lock
SELECT epoch FROM subscriptions WHERE id = :subscription_id FOR NO KEY UPDATE;

-- name: insert
INSERT INTO subscriptions (id, key, owner, event_types, definition)
VALUES (:id, :key, :owner, :event_types, :definition)
ON CONFLICT (key) DO NOTHING RETURNING id;

-- name: find
SELECT definition FROM subscriptions WHERE key = :key;

-- name: get
SELECT definition, epoch FROM subscriptions WHERE id = :subscription_id;

-- name: list (sqlite)
SELECT definition FROM subscriptions s
WHERE (:owner IS NULL OR owner = :owner) AND NOT EXISTS (
    SELECT 1 FROM json_each(:event_types) asked
    WHERE asked.value NOT IN (SELECT value FROM json_each(s.event_types))
)
ORDER BY number DESC LIMIT :limit OFFSET :offset;

-- name: list (postgres)
SELECT definition FROM subscriptions
WHERE (:owner::text IS NULL OR owner = :owner) AND event_types @> :event_types::text[]
ORDER BY number DESC LIMIT :limit OFFSET :offset;

-- name: update
UPDATE subscriptions SET definition = :definition WHERE id = :subscription_id;

-- name: delete
DELETE FROM subscriptions WHERE id = :subscription_id;

-- name: touch
UPDATE subscriptions SET version = :version WHERE id = :subscription_id;

-- name: versions
SELECT id, version FROM subscriptions WHERE id = ANY (:subscription_ids);

-- name: raise_epoch
UPDATE subscriptions SET epoch = epoch + 1 WHERE id = :subscription_id;

-- name: shares
SELECT event_type_id, partition, event_type, timeline, position, skipped, owner, heir
FROM subscription_cursors WHERE subscription_id = :subscription_id ORDER BY event_type, partition;

-- name: add_share
INSERT INTO subscription_cursors (subscription_id, event_type, event_type_id, partition, timeline, position)
VALUES (:subscription_id, :event_type, :event_type_id, :partition, :timeline, :position)
ON CONFLICT DO NOTHING RETURNING partition;

-- name: set_share
INSERT INTO subscription_cursors (subscription_id, event_type, event_type_id, partition, timeline, position)
VALUES (:subscription_id, :event_type, :event_type_id, :partition, :timeline, :position)
ON CONFLICT (subscription_id, event_type, partition) DO UPDATE SET event_type_id = excluded.event_type_id,
    timeline = excluded.timeline, position = excluded.position, skipped = 0;

-- name: drop_old_incarnations
-- Deletes the cursors of a deleted event type when its successor of the same name gets a cursor.
DELETE FROM subscription_cursors
WHERE subscription_id = :subscription_id AND event_type = :event_type AND event_type_id <> :event_type_id;

-- name: assign
UPDATE subscription_cursors SET owner = :owner, heir = :heir
WHERE subscription_id = :subscription_id AND event_type_id = :event_type_id AND partition = :partition;

-- name: skip
UPDATE subscription_cursors SET timeline = :to_timeline, position = :to_position, skipped = skipped + :skipped
WHERE subscription_id = :subscription_id AND event_type_id = :event_type_id AND partition = :partition
    AND timeline = :timeline AND position = :position
RETURNING partition;

-- name: committed
SELECT event_type_id, partition, event_type, timeline, position, skipped, owner, heir FROM subscription_cursors
WHERE subscription_id = :subscription_id AND event_type = :event_type AND partition = :partition;

-- name: commit
UPDATE subscription_cursors SET timeline = :timeline, position = :position
WHERE subscription_id = :subscription_id AND event_type = :event_type AND partition = :partition;

-- name: add_stream
INSERT INTO subscription_streams (id, subscription_id, node, epoch, direct, boot, expires_ms)
VALUES (:id, :subscription_id, :node, :epoch, :direct, :boot, :expires_ms);

-- name: members
SELECT id, direct FROM subscription_streams
WHERE subscription_id = :subscription_id AND ended_ms IS NULL AND boot = :boot
    AND expires_ms > coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY number;

-- name: stream
SELECT epoch, coalesce(ended_ms, expires_ms), kept FROM subscription_streams
WHERE id = :stream_id AND subscription_id = :subscription_id AND boot = :boot;

-- name: subscription_of
SELECT subscription_id FROM subscription_streams WHERE id = :stream_id;

-- name: held
-- A live stream has at least one row; without slots, it is a row of NULLs.
SELECT c.event_type_id, c.partition, c.event_type, c.timeline, c.position, c.skipped, c.owner, c.heir
FROM subscription_streams s LEFT JOIN subscription_cursors c
    ON c.subscription_id = s.subscription_id AND c.owner = s.id
WHERE s.id = :stream_id AND s.ended_ms IS NULL AND s.boot = :boot
    AND s.expires_ms > coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY c.event_type, c.partition;

-- name: renew
UPDATE subscription_streams SET expires_ms = :expires_ms
WHERE node = :node AND ended_ms IS NULL AND boot = :boot AND expires_ms > :now_ms AND id = ANY (:stream_ids);

-- name: expired
SELECT DISTINCT subscription_id FROM subscription_streams
WHERE ended_ms IS NULL AND (boot <> :boot OR expires_ms <= :now_ms);

-- name: expire
-- A stream ended when its lease expired. A stream of an earlier machine start cannot commit any more.
UPDATE subscription_streams SET ended_ms = expires_ms
WHERE subscription_id = :subscription_id AND ended_ms IS NULL AND (boot <> :boot OR expires_ms <= :now_ms)
RETURNING id;

-- name: end_stream
UPDATE subscription_streams SET ended_ms = :now_ms WHERE id = :stream_id AND ended_ms IS NULL RETURNING id;

-- name: keep
UPDATE subscription_streams SET kept = :kept WHERE id = :stream_id;

-- name: end_streams
UPDATE subscription_streams SET ended_ms = :now_ms WHERE subscription_id = :subscription_id AND ended_ms IS NULL;

-- name: forget_streams
DELETE FROM subscription_streams WHERE ended_ms IS NOT NULL AND (boot <> :boot OR ended_ms < :before_ms);

-- name: release
UPDATE subscription_cursors SET owner = heir, heir = NULL
WHERE owner = :stream_id AND event_type_id = :event_type_id AND partition = :partition AND heir IS NOT NULL
RETURNING partition;
