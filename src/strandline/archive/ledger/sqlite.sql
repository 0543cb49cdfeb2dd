-- name: create
-- An event type's row is what claims are counted on; every row that was read went one way.
CREATE TABLE IF NOT EXISTS types (
    event_type   TEXT PRIMARY KEY,
    entry_id     TEXT NOT NULL,
    incarnation  INTEGER NOT NULL DEFAULT 1,
    epoch        INTEGER NOT NULL DEFAULT 1,
    read_ms      INTEGER NOT NULL DEFAULT -1,
    read         INTEGER NOT NULL DEFAULT 0,
    archived     INTEGER NOT NULL DEFAULT 0,
    late         INTEGER NOT NULL DEFAULT 0,
    quarantined  INTEGER NOT NULL DEFAULT 0,
    dropped      INTEGER NOT NULL DEFAULT 0,
    skipped      INTEGER NOT NULL DEFAULT 0,
    CHECK (read = archived + late + quarantined + dropped)
);
CREATE TABLE IF NOT EXISTS terms (
    event_type  TEXT NOT NULL,
    from_ms     INTEGER NOT NULL,
    to_ms       INTEGER,
    PRIMARY KEY (event_type, from_ms)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_open_term ON terms (event_type) WHERE to_ms IS NULL;
-- Consumed up to where, and the last finished shift.
CREATE TABLE IF NOT EXISTS partitions (
    event_type        TEXT NOT NULL,
    partition         INTEGER NOT NULL,
    timeline          INTEGER NOT NULL,
    position          INTEGER NOT NULL,
    max_timestamp_ms  INTEGER NOT NULL,
    shift             INTEGER NOT NULL,
    start_ms          INTEGER NOT NULL,
    end_ms            INTEGER NOT NULL,
    PRIMARY KEY (event_type, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    path         TEXT PRIMARY KEY,
    event_type   TEXT NOT NULL,
    hour_ms      INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    published    INTEGER NOT NULL DEFAULT 0,
    partition    INTEGER NOT NULL,
    timeline     INTEGER NOT NULL,
    first        INTEGER NOT NULL,
    last         INTEGER NOT NULL,
    rows         INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    sha256       TEXT NOT NULL,
    min_time_ms  INTEGER NOT NULL,
    max_time_ms  INTEGER NOT NULL,
    staged       TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_of_hour ON files (event_type, hour_ms);
CREATE INDEX IF NOT EXISTS publishing_files ON files (event_type) WHERE published = 0;
-- Revision 0 is not flagged; `written` is in the files, `settled` is in the flag above.
CREATE TABLE IF NOT EXISTS hours (
    event_type  TEXT NOT NULL,
    hour_ms     INTEGER NOT NULL,
    path        TEXT UNIQUE,
    revision    INTEGER NOT NULL DEFAULT 0,
    written     INTEGER NOT NULL DEFAULT 0,
    settled     INTEGER NOT NULL DEFAULT 0,
    stale       INTEGER NOT NULL DEFAULT 0,
    barrier     TEXT,
    flagged_ms  INTEGER NOT NULL DEFAULT -1,
    epoch       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (event_type, hour_ms)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS hours_by_time ON hours (hour_ms);
CREATE INDEX IF NOT EXISTS flagged_hours ON hours (event_type, hour_ms) WHERE revision > 0;
CREATE INDEX IF NOT EXISTS unwritten_hours ON hours (event_type, hour_ms) WHERE written < revision OR stale = 1;
CREATE INDEX IF NOT EXISTS unsettled_hours ON hours (hour_ms) WHERE settled < written;
CREATE TABLE IF NOT EXISTS periods (
    path      TEXT PRIMARY KEY,
    start_ms  INTEGER NOT NULL,
    revision  INTEGER NOT NULL,
    written   INTEGER NOT NULL DEFAULT 0,
    settled   INTEGER NOT NULL DEFAULT 0,
    children  TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS periods_by_time ON periods (start_ms);
CREATE INDEX IF NOT EXISTS unwritten_periods ON periods (start_ms) WHERE written < revision;
CREATE INDEX IF NOT EXISTS unsettled_periods ON periods (start_ms) WHERE settled < written;
-- On the clock of the machine's start `boot`.
CREATE TABLE IF NOT EXISTS owners (
    owner       TEXT PRIMARY KEY,
    boot        TEXT NOT NULL,
    expires_ms  INTEGER NOT NULL,
    told        TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    name   TEXT PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES owners (owner) ON DELETE CASCADE
) WITHOUT ROWID;

-- name: renew
INSERT INTO owners (owner, boot, expires_ms, told) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET boot = excluded.boot, expires_ms = excluded.expires_ms, told = excluded.told;

-- name: bury
DELETE FROM owners WHERE boot <> ? OR expires_ms <= ?;

-- name: owners
SELECT owner, told FROM owners WHERE boot = ? AND expires_ms > ? ORDER BY owner;

-- name: has_lease
SELECT 1 FROM leases l JOIN owners o ON o.owner = l.owner
WHERE l.name = ? AND l.owner = ? AND o.boot = ? AND o.expires_ms > ?;

-- name: take
INSERT INTO leases (name, owner) SELECT ?, owner FROM owners WHERE owner = ?
ON CONFLICT DO UPDATE SET owner = excluded.owner WHERE owner = excluded.owner
RETURNING name;

-- name: release
DELETE FROM leases WHERE owner = ? AND name = ?;

-- name: leave
DELETE FROM owners WHERE owner = ?;

-- name: terms
SELECT event_type, from_ms, to_ms FROM terms ORDER BY event_type, from_ms;

-- name: open_term
INSERT INTO terms (event_type, from_ms) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: drop_empty_term
DELETE FROM terms WHERE event_type = ?1 AND to_ms IS NULL AND from_ms >= ?2 RETURNING event_type;

-- name: close_term
UPDATE terms SET to_ms = ?2 WHERE event_type = ?1 AND to_ms IS NULL RETURNING event_type;

-- name: claim
INSERT INTO types (event_type, entry_id) VALUES (?, ?)
ON CONFLICT DO UPDATE SET epoch = epoch + 1
RETURNING epoch, incarnation, entry_id;

-- name: made_anew
UPDATE types SET entry_id = ?2, incarnation = incarnation + 1, read_ms = -1
WHERE event_type = ?1 RETURNING incarnation;

-- name: forget_partitions
DELETE FROM partitions WHERE event_type = ?;

-- name: forget_barriers
DELETE FROM hours WHERE event_type = ? AND revision = 0;

-- name: is_owner
SELECT 1 FROM types WHERE event_type = ? AND epoch = ?;

-- name: standing
-- A row for every partition, or one of nothing: one statement, so one moment.
SELECT epoch, incarnation, read_ms,
    coalesce((SELECT hour_ms FROM hours h WHERE h.event_type = t.event_type AND revision > 0
              ORDER BY hour_ms DESC LIMIT 1), -1),
    read, archived, late, quarantined, dropped, skipped,
    partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms
FROM types t LEFT JOIN partitions p ON p.event_type = t.event_type
WHERE t.event_type = ? ORDER BY partition;

-- name: partitions
SELECT partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms
FROM partitions WHERE event_type = ? ORDER BY partition;

-- name: store
INSERT INTO partitions
    (event_type, partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET timeline = excluded.timeline, position = excluded.position,
    max_timestamp_ms = excluded.max_timestamp_ms, shift = excluded.shift,
    start_ms = excluded.start_ms, end_ms = excluded.end_ms;

-- name: count
UPDATE types SET read_ms = max(read_ms, ?2), read = read + ?3, archived = archived + ?4, late = late + ?5,
    quarantined = quarantined + ?6, dropped = dropped + ?7, skipped = skipped + ?8
WHERE event_type = ?1;

-- name: flagged_among
SELECT hour_ms FROM hours
WHERE event_type = ? AND hour_ms IN (SELECT value FROM json_each(?)) AND revision > 0;

-- name: listed_among
SELECT path FROM files WHERE path IN (SELECT value FROM json_each(?));

-- name: add_file
INSERT INTO files (event_type, path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256,
    min_time_ms, max_time_ms, staged)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: make_stale
UPDATE hours SET stale = 1 WHERE event_type = ? AND hour_ms = ?;

-- name: publishing
SELECT path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256, min_time_ms, max_time_ms, staged
FROM files WHERE event_type = ? AND published = 0 ORDER BY path;

-- name: publish
UPDATE files SET published = 1 WHERE event_type = ? AND path = ?;

-- name: files
SELECT path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256, min_time_ms, max_time_ms, staged
FROM files WHERE event_type = ? AND hour_ms = ? AND published = 1 ORDER BY path;

-- name: hours
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM hours
WHERE hour_ms >= ? AND hour_ms < ? ORDER BY event_type, hour_ms;

-- name: hours_of
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM hours
WHERE hour_ms >= ? AND hour_ms < ? AND event_type = ? ORDER BY hour_ms;

-- name: set_barrier
INSERT INTO hours (event_type, hour_ms, barrier) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET barrier = excluded.barrier WHERE barrier IS NULL;

-- name: unpublished_in
SELECT 1 FROM files WHERE event_type = ? AND hour_ms = ? AND published = 0 LIMIT 1;

-- name: flag_hour
INSERT INTO hours (event_type, hour_ms, path, revision, flagged_ms, epoch) VALUES (?, ?, ?, 1, ?, ?)
ON CONFLICT DO UPDATE SET path = excluded.path, revision = revision + 1, stale = 0,
    flagged_ms = excluded.flagged_ms, epoch = excluded.epoch
WHERE revision = 0 OR stale = 1;

-- name: confirm_hour
UPDATE hours SET written = max(written, ?3) WHERE event_type = ?1 AND hour_ms = ?2 AND revision >= ?3;

-- name: unwritten_hours
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM hours
WHERE event_type = ? AND (written < revision OR stale = 1) ORDER BY hour_ms;

-- name: unsettled
SELECT path, hour_ms FROM hours WHERE settled < written
UNION ALL SELECT path, start_ms FROM periods WHERE settled < written;

-- name: revisions
SELECT path, written FROM hours WHERE written > 0 AND path IN (SELECT value FROM json_each(?1))
UNION ALL SELECT path, written FROM periods WHERE written > 0 AND path IN (SELECT value FROM json_each(?1));

-- name: period
SELECT path, start_ms, revision, written, children FROM periods WHERE path = ?;

-- name: flag_period
INSERT INTO periods (path, start_ms, revision, children) VALUES (?, ?, 1, ?)
ON CONFLICT DO UPDATE SET revision = revision + 1, children = excluded.children;

-- name: confirm_period
UPDATE periods SET written = max(written, ?2) WHERE path = ?1 AND revision >= ?2;

-- name: settle_hour
UPDATE hours SET settled = max(settled, ?2) WHERE path = ?1;

-- name: settle_period
UPDATE periods SET settled = max(settled, ?2) WHERE path = ?1;

-- name: unwritten_periods
SELECT path, start_ms, revision, written, children FROM periods WHERE written < revision ORDER BY start_ms, path;

-- name: periods
SELECT path, start_ms, revision, written, children FROM periods WHERE start_ms >= ? AND start_ms < ? ORDER BY path;
