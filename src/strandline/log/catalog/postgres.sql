-- name: turn
-- One at a time makes the tables, of all rooms.
SELECT pg_advisory_xact_lock(hashtextextended('strandline', 0));

-- name: encoding
SELECT current_setting('server_encoding');

-- name: is_made
SELECT to_regclass('strandline.catalog') IS NOT NULL;

-- name: layout
SELECT layout FROM strandline.catalog;

-- name: create
-- Definitions are JSON texts: the catalog compares and hands them on, it does not look inside.
-- Names sort by their bytes, whatever the language of the database is.
CREATE SCHEMA IF NOT EXISTS strandline;
-- One row. Its version is another one after every change; whoever writes anything locks it first.
CREATE TABLE strandline.catalog (
    id       INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    layout   INTEGER NOT NULL,
    version  BIGINT NOT NULL
);
INSERT INTO strandline.catalog (layout, version) VALUES (2, 0);
CREATE TABLE strandline.storages (
    id          TEXT COLLATE "C" PRIMARY KEY,
    definition  TEXT NOT NULL,
    is_default  BOOLEAN NOT NULL
);
CREATE TABLE strandline.event_types (
    id          TEXT PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL UNIQUE,
    definition  TEXT NOT NULL
);
CREATE TABLE strandline.schemas (
    event_type_id  TEXT NOT NULL REFERENCES strandline.event_types (id) ON DELETE CASCADE,
    number         INTEGER NOT NULL,
    definition     TEXT NOT NULL,
    PRIMARY KEY (event_type_id, number)
);
-- A removed timeline has no storage; which one it was is in its definition.
CREATE TABLE strandline.timelines (
    id             TEXT PRIMARY KEY,
    event_type_id  TEXT NOT NULL REFERENCES strandline.event_types (id) ON DELETE CASCADE,
    position       INTEGER NOT NULL,
    storage_id     TEXT REFERENCES strandline.storages (id),
    topic          TEXT NOT NULL UNIQUE,
    definition     TEXT NOT NULL,
    UNIQUE (event_type_id, position)
);
-- All switches there ever were; at most one of an event type is not decided.
CREATE TABLE strandline.switches (
    number         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token          TEXT NOT NULL UNIQUE,
    event_type_id  TEXT NOT NULL REFERENCES strandline.event_types (id) ON DELETE CASCADE,
    storage_id     TEXT NOT NULL,
    state          TEXT NOT NULL,
    definition     TEXT NOT NULL
);
CREATE UNIQUE INDEX one_undecided_switch ON strandline.switches (event_type_id)
WHERE state IN ('preparing', 'closing');
CREATE INDEX switches_of_event_type ON strandline.switches (event_type_id, number);
-- Topics that nobody owns (yet, or any more).
CREATE TABLE strandline.doomed_topics (
    storage_id  TEXT NOT NULL,
    topic       TEXT NOT NULL,
    after_ms    BIGINT NOT NULL,
    PRIMARY KEY (storage_id, topic)
);

-- name: from_layout_1
-- There every timeline had to have a storage.
ALTER TABLE strandline.timelines ALTER COLUMN storage_id DROP NOT NULL;
UPDATE strandline.catalog SET layout = 2;

-- name: change
-- The first statement of everybody who writes: they come one after the other, and what the next statements
-- read stays as it is until the commit.
UPDATE strandline.catalog SET version = %s;

-- name: version
SELECT version FROM strandline.catalog;

-- name: insert_event_type
INSERT INTO strandline.event_types (id, name, definition) VALUES (%s, %s, %s)
ON CONFLICT DO NOTHING RETURNING id;

-- name: definition
SELECT definition FROM strandline.event_types WHERE id = %s;

-- name: update_event_type
UPDATE strandline.event_types SET definition = %s WHERE id = %s;

-- name: delete_event_type
DELETE FROM strandline.event_types WHERE id = %s RETURNING id;

-- name: entries
-- Every event type with its timelines and newest switch: one statement, so one moment.
SELECT e.id, e.definition, t.definition, s.definition, s.state
FROM strandline.event_types e
JOIN strandline.timelines t ON t.event_type_id = e.id
LEFT JOIN strandline.switches s
    ON s.number = (SELECT max(number) FROM strandline.switches WHERE event_type_id = e.id)
ORDER BY e.name, t.position;

-- name: entry
SELECT e.id, e.definition, t.definition, s.definition, s.state
FROM strandline.event_types e
JOIN strandline.timelines t ON t.event_type_id = e.id
LEFT JOIN strandline.switches s
    ON s.number = (SELECT max(number) FROM strandline.switches WHERE event_type_id = e.id)
WHERE e.name = %s
ORDER BY t.position;

-- name: timelines
SELECT definition FROM strandline.timelines WHERE event_type_id = %s ORDER BY position;

-- name: update_timeline
UPDATE strandline.timelines SET definition = %s WHERE id = %s;

-- name: insert_timeline
INSERT INTO strandline.timelines (id, event_type_id, position, storage_id, topic, definition)
VALUES (%s, %s, %s, %s, %s, %s);

-- name: remove_timeline
UPDATE strandline.timelines SET storage_id = NULL, definition = %s
WHERE id = %s AND storage_id IS NOT NULL RETURNING topic;

-- name: insert_schema
INSERT INTO strandline.schemas (event_type_id, number, definition)
SELECT e.id, 1 + coalesce((SELECT max(number) FROM strandline.schemas WHERE event_type_id = e.id), 0), %s
FROM strandline.event_types e WHERE e.id = %s;

-- name: schemas
SELECT definition FROM strandline.schemas WHERE event_type_id = %s ORDER BY number DESC;

-- name: doom
INSERT INTO strandline.doomed_topics (storage_id, topic, after_ms) VALUES (%s, %s, %s)
ON CONFLICT (storage_id, topic) DO UPDATE SET after_ms = excluded.after_ms;

-- name: doom_all_of
INSERT INTO strandline.doomed_topics (storage_id, topic, after_ms)
SELECT storage_id, topic, %s FROM strandline.timelines WHERE event_type_id = %s AND storage_id IS NOT NULL
ON CONFLICT (storage_id, topic) DO UPDATE SET after_ms = excluded.after_ms;

-- name: doomed
-- Whatever was announced when: a topic that an event type owns is not for the sweep.
SELECT storage_id, topic FROM strandline.doomed_topics d WHERE after_ms <= %s
AND NOT EXISTS (
    SELECT 1 FROM strandline.timelines t WHERE t.storage_id = d.storage_id AND t.topic = d.topic
)
ORDER BY after_ms;

-- name: forget
DELETE FROM strandline.doomed_topics WHERE storage_id = %s AND topic = %s RETURNING topic;

-- name: begin_switch
INSERT INTO strandline.switches (token, event_type_id, storage_id, state, definition)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING RETURNING token;

-- name: switch
SELECT definition, state FROM strandline.switches WHERE token = %s;

-- name: undecided
SELECT definition, state FROM strandline.switches WHERE state IN ('preparing', 'closing') ORDER BY number;

-- name: move_switch
UPDATE strandline.switches SET state = %s WHERE token = %s AND state = ANY (%s) RETURNING event_type_id;

-- name: storages
SELECT definition, is_default FROM strandline.storages ORDER BY id;

-- name: add_storage
-- The first one of all is the default.
INSERT INTO strandline.storages (id, definition, is_default)
SELECT %s, %s, NOT EXISTS (SELECT 1 FROM strandline.storages)
ON CONFLICT DO NOTHING RETURNING id;

-- name: is_storage
SELECT is_default FROM strandline.storages WHERE id = %s;

-- name: set_default
UPDATE strandline.storages SET is_default = (id = %s);

-- name: storage_in_use
SELECT EXISTS (SELECT 1 FROM strandline.timelines WHERE storage_id = s.id)
    OR EXISTS (SELECT 1 FROM strandline.doomed_topics WHERE storage_id = s.id)
    OR EXISTS (SELECT 1 FROM strandline.switches WHERE storage_id = s.id AND state IN ('preparing', 'closing'))
FROM strandline.storages s WHERE s.id = %s;

-- name: remove_storage
DELETE FROM strandline.storages WHERE id = %s;
