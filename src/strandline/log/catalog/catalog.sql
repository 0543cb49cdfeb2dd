-- Definitions are JSON texts. Only migrations read inside them.

-- name: version_before (sqlite)
-- In the first layout, `storage_id` of a timeline was NOT NULL.
SELECT coalesce((SELECT CASE WHEN "notnull" THEN 1 ELSE 2 END
                 FROM pragma_table_info('timelines') WHERE name = 'storage_id'), 0);

-- name: version_before (postgres)
SELECT coalesce((SELECT CASE WHEN attnotnull THEN 1 ELSE 2 END
                 FROM pg_attribute WHERE attrelid = to_regclass('timelines') AND attname = 'storage_id'), 0);

-- name: create
-- Names sort by their bytes, independently of the database's locale.
-- `layout` is for releases without the table of layouts: they refuse a number larger than they know.
CREATE TABLE catalog (
    id       INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    layout   INTEGER NOT NULL DEFAULT 1000,
    version  BIGINT NOT NULL
);
INSERT INTO catalog (version) VALUES (0);
CREATE TABLE storages (
    id          TEXT COLLATE "C" PRIMARY KEY,
    definition  TEXT NOT NULL,
    is_default  BOOLEAN NOT NULL
);
CREATE TABLE event_types (
    id          TEXT PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL UNIQUE,
    definition  TEXT NOT NULL
);
CREATE TABLE schemas (
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    number         INTEGER NOT NULL,
    definition     TEXT NOT NULL,
    PRIMARY KEY (event_type_id, number)
);
-- A removed timeline has no `storage_id`; its definition still has the storage.
CREATE TABLE timelines (
    id             TEXT PRIMARY KEY,
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    position       INTEGER NOT NULL,
    storage_id     TEXT REFERENCES storages (id),
    topic          TEXT NOT NULL UNIQUE,
    definition     TEXT NOT NULL,
    UNIQUE (event_type_id, position)
);
-- All switches, including past ones; at most one per event type is undecided.
CREATE TABLE switches (
    number         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token          TEXT NOT NULL UNIQUE,
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    storage_id     TEXT NOT NULL,
    state          TEXT NOT NULL,
    definition     TEXT NOT NULL
);
CREATE UNIQUE INDEX one_undecided_switch ON switches (event_type_id) WHERE state IN ('preparing', 'closing');
CREATE INDEX switches_of_event_type ON switches (event_type_id, number);
-- Topics that are marked for deletion: no event type owns them yet, or any more. A claimed topic is being deleted.
CREATE TABLE doomed_topics (
    storage_id  TEXT NOT NULL,
    topic       TEXT NOT NULL,
    after_ms    BIGINT NOT NULL,
    claimed     BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (storage_id, topic)
);
-- The last order of every deleted event type, so that a later event type of the same name uses other orders.
CREATE TABLE last_orders (
    name      TEXT COLLATE "C" PRIMARY KEY,
    position  INTEGER NOT NULL
);
-- The newest holder of every fence of an event type.
CREATE TABLE fences (
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    name           TEXT COLLATE "C" NOT NULL,
    epoch          BIGINT NOT NULL,
    PRIMARY KEY (event_type_id, name)
);

-- name: migration_2 (sqlite)
ALTER TABLE timelines RENAME TO timelines_1;
CREATE TABLE timelines (
    id             TEXT PRIMARY KEY,
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    position       INTEGER NOT NULL,
    storage_id     TEXT REFERENCES storages (id),
    topic          TEXT NOT NULL UNIQUE,
    definition     TEXT NOT NULL,
    UNIQUE (event_type_id, position)
);
INSERT INTO timelines SELECT id, event_type_id, position, storage_id, topic, definition FROM timelines_1;
DROP TABLE timelines_1;

-- name: migration_2 (postgres)
ALTER TABLE timelines ALTER COLUMN storage_id DROP NOT NULL;

-- name: migration_3 (sqlite)
-- As in PostgreSQL.
CREATE TABLE catalog (
    id       INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    layout   INTEGER NOT NULL DEFAULT 1000,
    version  BIGINT NOT NULL
);
INSERT INTO catalog (version) VALUES (0);
DROP TABLE IF EXISTS catalog_changes;

-- name: migration_3 (postgres)
UPDATE catalog SET layout = 1000;
ALTER TABLE catalog ALTER COLUMN layout SET DEFAULT 1000;

-- name: migration_4
ALTER TABLE doomed_topics ADD COLUMN claimed BOOLEAN NOT NULL DEFAULT FALSE;
CREATE TABLE last_orders (
    name      TEXT COLLATE "C" PRIMARY KEY,
    position  INTEGER NOT NULL
);

-- name: migration_5
-- The newest holder of every fence of an event type.
CREATE TABLE fences (
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    name           TEXT COLLATE "C" NOT NULL,
    epoch          BIGINT NOT NULL,
    PRIMARY KEY (event_type_id, name)
);

-- name: migration_6 (sqlite)
-- `switched_at` was the time when the timeline was closed. A timeline was always created when it became active.
UPDATE timelines SET definition = json_set(
    definition, '$.closed_at', definition ->> '$.switched_at', '$.switched_at', definition ->> '$.created_at'
);

-- name: migration_6 (postgres)
-- As in SQLite.
UPDATE timelines SET definition = (definition::jsonb || jsonb_build_object(
    'closed_at', definition::jsonb -> 'switched_at', 'switched_at', definition::jsonb -> 'created_at'
))::text;

-- name: change
-- The first statement of every write: on PostgreSQL, writers queue on this row, so the rows that the next
-- statements read do not change before the commit.
UPDATE catalog SET version = :version;

-- name: version
SELECT version FROM catalog;

-- name: insert_event_type
INSERT INTO event_types (id, name, definition) VALUES (:entry_id, :name, :definition)
ON CONFLICT DO NOTHING RETURNING id;

-- name: definition
SELECT definition FROM event_types WHERE id = :entry_id;

-- name: update_event_type
UPDATE event_types SET definition = :definition WHERE id = :entry_id;

-- name: last_order
SELECT position FROM last_orders WHERE name = :name;

-- name: keep_last_order
INSERT INTO last_orders (name, position)
SELECT e.name, max(t.position) FROM event_types e JOIN timelines t ON t.event_type_id = e.id
WHERE e.id = :entry_id GROUP BY e.name
ON CONFLICT (name) DO UPDATE SET position = excluded.position;

-- name: delete_event_type
DELETE FROM event_types WHERE id = :entry_id RETURNING id;

-- name: entries
-- Every event type with its timelines and newest switch, in one statement for a consistent snapshot.
SELECT e.id, e.definition, t.definition, s.definition, s.state
FROM event_types e
JOIN timelines t ON t.event_type_id = e.id
LEFT JOIN switches s ON s.number = (SELECT max(number) FROM switches WHERE event_type_id = e.id)
ORDER BY e.name, t.position;

-- name: entry
SELECT e.id, e.definition, t.definition, s.definition, s.state
FROM event_types e
JOIN timelines t ON t.event_type_id = e.id
LEFT JOIN switches s ON s.number = (SELECT max(number) FROM switches WHERE event_type_id = e.id)
WHERE e.name = :name
ORDER BY t.position;

-- name: timelines
SELECT definition FROM timelines WHERE event_type_id = :entry_id ORDER BY position;

-- name: update_timeline
UPDATE timelines SET definition = :definition WHERE id = :id;

-- name: insert_timeline
INSERT INTO timelines (id, event_type_id, position, storage_id, topic, definition)
VALUES (:id, :entry_id, :position, :storage_id, :topic, :definition);

-- name: remove_timeline
UPDATE timelines SET storage_id = NULL, definition = :definition
WHERE id = :id AND storage_id IS NOT NULL RETURNING topic;

-- name: insert_schema
INSERT INTO schemas (event_type_id, number, definition)
SELECT e.id, 1 + coalesce((SELECT max(number) FROM schemas WHERE event_type_id = e.id), 0), :definition
FROM event_types e WHERE e.id = :entry_id;

-- name: schemas
SELECT definition FROM schemas WHERE event_type_id = :entry_id ORDER BY number DESC;

-- name: mark_topic
INSERT INTO doomed_topics (storage_id, topic, after_ms)
VALUES (:storage_id, :topic,
    :delay_ms + coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint))
ON CONFLICT (storage_id, topic) DO UPDATE SET after_ms = excluded.after_ms, claimed = FALSE;

-- name: mark_topics_of
INSERT INTO doomed_topics (storage_id, topic, after_ms)
SELECT storage_id, topic, coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
FROM timelines WHERE event_type_id = :entry_id AND storage_id IS NOT NULL
ON CONFLICT (storage_id, topic) DO UPDATE SET after_ms = excluded.after_ms, claimed = FALSE;

-- name: marked_topics
-- A topic that an event type owns is not deleted, even if it is marked.
SELECT storage_id, topic FROM doomed_topics d
WHERE after_ms <= coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
AND NOT EXISTS (SELECT 1 FROM timelines t WHERE t.storage_id = d.storage_id AND t.topic = d.topic)
ORDER BY after_ms;

-- name: claim_topic
UPDATE doomed_topics AS d SET claimed = TRUE WHERE storage_id = :storage_id AND topic = :topic
AND NOT EXISTS (SELECT 1 FROM timelines t WHERE t.storage_id = d.storage_id AND t.topic = d.topic)
RETURNING topic;

-- name: own_topic
DELETE FROM doomed_topics WHERE storage_id = :storage_id AND topic = :topic AND NOT claimed RETURNING topic;

-- name: topic_in_use
-- The name of a topic is unique over all storages.
SELECT EXISTS (SELECT 1 FROM timelines WHERE topic = :topic)
    OR EXISTS (SELECT 1 FROM doomed_topics WHERE storage_id = :storage_id AND topic = :topic);

-- name: forget_topic
-- If the topic was marked again after the claim, it may have been created again.
DELETE FROM doomed_topics WHERE storage_id = :storage_id AND topic = :topic AND claimed;

-- name: begin_switch
INSERT INTO switches (token, event_type_id, storage_id, state, definition)
VALUES (:token, :entry_id, :storage_id, :state, :definition)
ON CONFLICT DO NOTHING RETURNING token;

-- name: switch
SELECT definition, state FROM switches WHERE token = :token;

-- name: undecided
SELECT definition, state FROM switches WHERE state IN ('preparing', 'closing') ORDER BY number;

-- name: undecided_of
SELECT definition, state FROM switches WHERE event_type_id = :entry_id AND state IN ('preparing', 'closing');

-- name: move_switch
UPDATE switches SET state = :state WHERE token = :token AND state = ANY (:before)
RETURNING event_type_id, definition, state;

-- name: storages
SELECT definition, is_default FROM storages ORDER BY id;

-- name: add_storage
-- The first storage becomes the default.
INSERT INTO storages (id, definition, is_default)
SELECT :id, :definition, NOT EXISTS (SELECT 1 FROM storages) WHERE TRUE
ON CONFLICT DO NOTHING RETURNING id;

-- name: is_storage
SELECT is_default FROM storages WHERE id = :id;

-- name: set_default
UPDATE storages SET is_default = (id = :id);

-- name: storage_in_use
SELECT EXISTS (SELECT 1 FROM timelines WHERE storage_id = s.id)
    OR EXISTS (SELECT 1 FROM doomed_topics WHERE storage_id = s.id)
    OR EXISTS (SELECT 1 FROM switches WHERE storage_id = s.id AND state IN ('preparing', 'closing'))
FROM storages s WHERE s.id = :id;

-- name: remove_storage
DELETE FROM storages WHERE id = :id;

-- name: raise_fence
-- Unless `held` is 0, only if no other holder has raised the fence since.
INSERT INTO fences (event_type_id, name, epoch)
SELECT e.id, :name, 1 FROM event_types e WHERE e.id = :entry_id
    AND (:held = 0 OR EXISTS (SELECT 1 FROM fences f WHERE f.event_type_id = e.id AND f.name = :name))
ON CONFLICT (event_type_id, name) DO UPDATE SET epoch = fences.epoch + 1
WHERE :held = 0 OR fences.epoch = :held
RETURNING epoch;

-- name: fences
SELECT name, epoch FROM fences WHERE event_type_id = :entry_id ORDER BY name;
