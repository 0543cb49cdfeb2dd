-- name: create
-- Definitions are JSON texts: the catalog compares and hands them on, it does not look inside.
CREATE TABLE IF NOT EXISTS storages (
    id          TEXT PRIMARY KEY,
    definition  TEXT NOT NULL,
    is_default  INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS event_types (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    definition  TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS schemas (
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    number         INTEGER NOT NULL,
    definition     TEXT NOT NULL,
    PRIMARY KEY (event_type_id, number)
);
-- A removed timeline has no storage; which one it was is in its definition.
CREATE TABLE IF NOT EXISTS timelines (
    id             TEXT PRIMARY KEY,
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    position       INTEGER NOT NULL,
    storage_id     TEXT REFERENCES storages (id),
    topic          TEXT NOT NULL UNIQUE,
    definition     TEXT NOT NULL,
    UNIQUE (event_type_id, position)
);
-- All switches there ever were; at most one of an event type is not decided.
CREATE TABLE IF NOT EXISTS switches (
    number         INTEGER PRIMARY KEY,
    token          TEXT NOT NULL UNIQUE,
    event_type_id  TEXT NOT NULL REFERENCES event_types (id) ON DELETE CASCADE,
    storage_id     TEXT NOT NULL,
    state          TEXT NOT NULL,
    definition     TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS one_undecided_switch ON switches (event_type_id)
WHERE state IN ('preparing', 'closing');
CREATE INDEX IF NOT EXISTS switches_of_event_type ON switches (event_type_id, number);
-- Topics that nobody owns (yet, or any more).
CREATE TABLE IF NOT EXISTS doomed_topics (
    storage_id  TEXT NOT NULL,
    topic       TEXT NOT NULL,
    after_ms    INTEGER NOT NULL,
    PRIMARY KEY (storage_id, topic)
);

-- How many transactions have changed anything above.
CREATE TABLE IF NOT EXISTS catalog_changes (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    number    INTEGER NOT NULL
);
INSERT INTO catalog_changes VALUES (1, 0) ON CONFLICT DO NOTHING;

-- name: set_layout_1_aside
-- There every timeline had to have a storage.
ALTER TABLE timelines RENAME TO timelines_1;

-- name: take_layout_1_over
INSERT INTO timelines SELECT id, event_type_id, position, storage_id, topic, definition FROM timelines_1;
DROP TABLE timelines_1;

-- name: changed
UPDATE catalog_changes SET number = number + 1;

-- name: changes
SELECT number FROM catalog_changes;

-- name: add_first_storage
INSERT INTO storages (id, definition, is_default)
SELECT ?, ?, 1 WHERE NOT EXISTS (SELECT 1 FROM storages);

-- name: storages
SELECT definition, is_default FROM storages ORDER BY id;

-- name: insert_event_type
INSERT INTO event_types (id, name, definition) VALUES (?, ?, ?)
ON CONFLICT DO NOTHING RETURNING id;

-- name: definition
SELECT definition FROM event_types WHERE id = ?;

-- name: update_event_type
UPDATE event_types SET definition = ? WHERE id = ?;

-- name: delete_event_type
DELETE FROM event_types WHERE id = ? RETURNING id;

-- name: entries
-- Every event type (or one, by name) with its timelines and newest switch: one statement, so one moment.
SELECT e.id, e.definition, t.definition, s.definition, s.state
FROM event_types e
JOIN timelines t ON t.event_type_id = e.id
LEFT JOIN switches s ON s.number = (SELECT max(number) FROM switches WHERE event_type_id = e.id)
WHERE ?1 IS NULL OR e.name = ?1
ORDER BY e.name, t.position;

-- name: timelines
SELECT definition FROM timelines WHERE event_type_id = ? ORDER BY position;

-- name: update_timeline
UPDATE timelines SET definition = ? WHERE id = ?;

-- name: insert_timeline
INSERT INTO timelines (id, event_type_id, position, storage_id, topic, definition) VALUES (?, ?, ?, ?, ?, ?);

-- name: remove_timeline
UPDATE timelines SET storage_id = NULL, definition = ? WHERE id = ? AND storage_id IS NOT NULL RETURNING topic;

-- name: insert_schema
INSERT INTO schemas (event_type_id, number, definition)
SELECT ?1, 1 + coalesce((SELECT max(number) FROM schemas WHERE event_type_id = ?1), 0), ?2;

-- name: schemas
SELECT definition FROM schemas WHERE event_type_id = ? ORDER BY number DESC;

-- name: doom
INSERT INTO doomed_topics (storage_id, topic, after_ms) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET after_ms = excluded.after_ms;

-- name: doom_all_of
INSERT INTO doomed_topics (storage_id, topic, after_ms)
SELECT storage_id, topic, ? FROM timelines WHERE event_type_id = ? AND storage_id IS NOT NULL
ON CONFLICT DO UPDATE SET after_ms = excluded.after_ms;

-- name: doomed
-- Whatever was announced when: a topic that an event type owns is not for the sweep.
SELECT storage_id, topic FROM doomed_topics d WHERE after_ms <= ?
AND NOT EXISTS (SELECT 1 FROM timelines t WHERE t.storage_id = d.storage_id AND t.topic = d.topic)
ORDER BY after_ms;

-- name: forget
DELETE FROM doomed_topics WHERE storage_id = ? AND topic = ? RETURNING topic;

-- name: begin_switch
INSERT INTO switches (token, event_type_id, storage_id, state, definition) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING token;

-- name: switch
SELECT definition, state, event_type_id FROM switches WHERE token = ?;

-- name: undecided
SELECT definition, state FROM switches WHERE state IN ('preparing', 'closing') ORDER BY number;

-- name: move_switch
UPDATE switches SET state = ?1 WHERE token = ?2 AND (state = ?3 OR state = ?4) RETURNING token;

-- name: add_storage
INSERT INTO storages (id, definition) VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING id;

-- name: is_storage
SELECT is_default FROM storages WHERE id = ?;

-- name: set_default
UPDATE storages SET is_default = (id = ?);

-- name: storage_in_use
SELECT EXISTS (SELECT 1 FROM timelines WHERE storage_id = ?1)
    OR EXISTS (SELECT 1 FROM doomed_topics WHERE storage_id = ?1)
    OR EXISTS (SELECT 1 FROM switches WHERE storage_id = ?1 AND state IN ('preparing', 'closing'));

-- name: remove_storage
DELETE FROM storages WHERE id = ?;
