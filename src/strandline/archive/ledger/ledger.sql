-- The archive's ledger. Barriers and children are JSON texts; the statements do not parse them.

-- name: version_before (sqlite)
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'types';

-- name: version_before (postgres)
SELECT CASE WHEN to_regclass('archive_types') IS NULL THEN 0 ELSE 1 END;

-- name: create
-- Text sorts by its bytes, also in a database with another collation.
-- One row for each event type; claims increment its epoch. Each record that was read has exactly one outcome.
CREATE TABLE archive_types (
    event_type   TEXT COLLATE "C" PRIMARY KEY,
    entry_id     TEXT NOT NULL,
    incarnation  INTEGER NOT NULL DEFAULT 1,
    epoch        BIGINT NOT NULL DEFAULT 1,
    read_ms      BIGINT NOT NULL DEFAULT -1,
    read         BIGINT NOT NULL DEFAULT 0,
    archived     BIGINT NOT NULL DEFAULT 0,
    late         BIGINT NOT NULL DEFAULT 0,
    quarantined  BIGINT NOT NULL DEFAULT 0,
    dropped      BIGINT NOT NULL DEFAULT 0,
    skipped      BIGINT NOT NULL DEFAULT 0,
    CHECK (read = archived + late + quarantined + dropped)
);
-- Where the hours of an event type are: the root, as in the settings, and the template.
CREATE TABLE archive_places (
    event_type  TEXT COLLATE "C" PRIMARY KEY,
    root        TEXT NOT NULL,
    template    TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE archive_terms (
    event_type  TEXT COLLATE "C" NOT NULL,
    from_ms     BIGINT NOT NULL,
    to_ms       BIGINT,
    PRIMARY KEY (event_type, from_ms)
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_open_archive_term ON archive_terms (event_type) WHERE to_ms IS NULL;
-- The position up to which a partition is consumed, and its last finished shift.
CREATE TABLE archive_partitions (
    event_type        TEXT COLLATE "C" NOT NULL,
    partition         INTEGER NOT NULL,
    timeline          BIGINT NOT NULL,
    position          BIGINT NOT NULL,
    max_timestamp_ms  BIGINT NOT NULL,
    shift             BIGINT NOT NULL,
    start_ms          BIGINT NOT NULL,
    end_ms            BIGINT NOT NULL,
    PRIMARY KEY (event_type, partition)
) WITHOUT ROWID;
CREATE TABLE archive_files (
    path         TEXT COLLATE "C" PRIMARY KEY,
    event_type   TEXT COLLATE "C" NOT NULL,
    hour_ms      BIGINT NOT NULL,
    kind         TEXT NOT NULL,
    published    BOOLEAN NOT NULL DEFAULT FALSE,
    partition    INTEGER NOT NULL,
    timeline     BIGINT NOT NULL,
    first        BIGINT NOT NULL,
    last         BIGINT NOT NULL,
    rows         BIGINT NOT NULL,
    bytes        BIGINT NOT NULL,
    sha256       TEXT NOT NULL,
    min_time_ms  BIGINT NOT NULL,
    max_time_ms  BIGINT NOT NULL,
    staged       TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX archive_files_of_hour ON archive_files (event_type, hour_ms);
CREATE INDEX publishing_archive_files ON archive_files (event_type) WHERE NOT published;
-- Revision 0 is not flagged. `written` is the revision in the files, `settled` the one in the flag above. `filled`:
-- the hour has data files, or may lack records because of a gap.
CREATE TABLE archive_hours (
    event_type  TEXT COLLATE "C" NOT NULL,
    hour_ms     BIGINT NOT NULL,
    path        TEXT COLLATE "C" UNIQUE,
    revision    BIGINT NOT NULL DEFAULT 0,
    written     BIGINT NOT NULL DEFAULT 0,
    settled     BIGINT NOT NULL DEFAULT 0,
    stale       BOOLEAN NOT NULL DEFAULT FALSE,
    barrier     TEXT,
    flagged_ms  BIGINT NOT NULL DEFAULT -1,
    epoch       BIGINT NOT NULL DEFAULT 0,
    filled      BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (event_type, hour_ms)
) WITHOUT ROWID;
CREATE INDEX unflagged_archive_data ON archive_hours (event_type, hour_ms) WHERE filled AND revision = 0;
CREATE INDEX archive_hours_by_time ON archive_hours (hour_ms);
CREATE INDEX flagged_archive_hours ON archive_hours (event_type, hour_ms) WHERE revision > 0;
CREATE INDEX unwritten_archive_hours ON archive_hours (event_type, hour_ms) WHERE written < revision OR stale;
CREATE INDEX unsettled_archive_hours ON archive_hours (hour_ms) WHERE settled < written;
CREATE TABLE archive_periods (
    path      TEXT COLLATE "C" PRIMARY KEY,
    start_ms  BIGINT NOT NULL,
    revision  BIGINT NOT NULL,
    written   BIGINT NOT NULL DEFAULT 0,
    settled   BIGINT NOT NULL DEFAULT 0,
    children  TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX archive_periods_by_time ON archive_periods (start_ms);
CREATE INDEX unwritten_archive_periods ON archive_periods (start_ms) WHERE written < revision;
CREATE INDEX unsettled_archive_periods ON archive_periods (start_ms) WHERE settled < written;
-- Records that expired before they were archived, up to a position. Hours from `from_ms` to `to_ms` may lack some.
CREATE TABLE archive_gaps (
    event_type      TEXT COLLATE "C" NOT NULL,
    partition       INTEGER NOT NULL,
    timeline        BIGINT NOT NULL,
    last            BIGINT NOT NULL,
    after_timeline  BIGINT,
    after_offset    BIGINT,
    records         BIGINT NOT NULL,
    from_ms         BIGINT NOT NULL,
    to_ms           BIGINT NOT NULL,
    PRIMARY KEY (event_type, partition, timeline, last)
) WITHOUT ROWID;
-- `expires_ms` is on the server's clock in PostgreSQL, on the clock of the machine's start `boot` in SQLite.
CREATE TABLE archive_owners (
    owner       TEXT PRIMARY KEY,
    boot        TEXT NOT NULL DEFAULT '',
    expires_ms  BIGINT NOT NULL,
    told        TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE archive_leases (
    name   TEXT COLLATE "C" PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES archive_owners (owner) ON DELETE CASCADE
) WITHOUT ROWID;

-- name: migration_2 (sqlite)
-- The same names as on PostgreSQL, and partial indexes with the predicates of the common statements: SQLite uses
-- a partial index only if its predicate is written as in the statement.
ALTER TABLE types RENAME TO archive_types;
ALTER TABLE terms RENAME TO archive_terms;
ALTER TABLE partitions RENAME TO archive_partitions;
ALTER TABLE files RENAME TO archive_files;
ALTER TABLE hours RENAME TO archive_hours;
ALTER TABLE periods RENAME TO archive_periods;
ALTER TABLE owners RENAME TO archive_owners;
ALTER TABLE leases RENAME TO archive_leases;
DROP INDEX publishing_files;
CREATE INDEX publishing_archive_files ON archive_files (event_type) WHERE NOT published;
DROP INDEX unwritten_hours;
CREATE INDEX unwritten_archive_hours ON archive_hours (event_type, hour_ms) WHERE written < revision OR stale;

-- name: migration_2 (postgres)
-- Processes of the previous release keep running while a node migrates: they must find all their columns.
-- `boot` is always empty here; SQLite needs it.
ALTER TABLE archive_owners ADD COLUMN boot TEXT NOT NULL DEFAULT '';

-- name: migration_3
-- Where the hours of an event type are: the root, as in the settings, and the template.
CREATE TABLE archive_places (
    event_type  TEXT COLLATE "C" PRIMARY KEY,
    root        TEXT NOT NULL,
    template    TEXT NOT NULL
) WITHOUT ROWID;
-- Hours with data and without a flag are found by an index, also those that no term covers.
ALTER TABLE archive_hours ADD COLUMN filled BOOLEAN NOT NULL DEFAULT FALSE;
INSERT INTO archive_hours (event_type, hour_ms, filled)
SELECT DISTINCT event_type, hour_ms, TRUE FROM archive_files WHERE kind = 'data'
ON CONFLICT (event_type, hour_ms) DO UPDATE SET filled = TRUE;
CREATE INDEX unflagged_archive_data ON archive_hours (event_type, hour_ms) WHERE filled AND revision = 0;

-- name: migration_4
-- Records that expired before they were archived, up to a position. Hours from `from_ms` to `to_ms` may lack some.
CREATE TABLE archive_gaps (
    event_type      TEXT COLLATE "C" NOT NULL,
    partition       INTEGER NOT NULL,
    timeline        BIGINT NOT NULL,
    last            BIGINT NOT NULL,
    after_timeline  BIGINT,
    after_offset    BIGINT,
    records         BIGINT NOT NULL,
    from_ms         BIGINT NOT NULL,
    to_ms           BIGINT NOT NULL,
    PRIMARY KEY (event_type, partition, timeline, last)
) WITHOUT ROWID;

-- name: now (sqlite)
SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER);

-- name: now (postgres)
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- include: process_leases.sql

-- part: processes
archive_owners

-- part: leases
archive_leases

-- part: progress
told

-- name: terms
SELECT event_type, from_ms, to_ms FROM archive_terms ORDER BY event_type, from_ms;

-- name: open_term
INSERT INTO archive_terms (event_type, from_ms) VALUES (:event_type, :from_ms) ON CONFLICT DO NOTHING;

-- name: terms_of
SELECT event_type, from_ms, to_ms FROM archive_terms WHERE event_type = :event_type ORDER BY from_ms;

-- name: cover
INSERT INTO archive_terms (event_type, from_ms, to_ms) VALUES (:event_type, :from_ms, :to_ms)
ON CONFLICT DO NOTHING;

-- name: drop_empty_term
DELETE FROM archive_terms WHERE event_type = :event_type AND to_ms IS NULL AND from_ms >= :to_ms
RETURNING event_type;

-- name: close_term
UPDATE archive_terms SET to_ms = :to_ms WHERE event_type = :event_type AND to_ms IS NULL RETURNING event_type;

-- name: place
SELECT root, template FROM archive_places WHERE event_type = :event_type;

-- name: set_place
INSERT INTO archive_places (event_type, root, template) VALUES (:event_type, :root, :template)
ON CONFLICT (event_type) DO UPDATE SET root = excluded.root, template = excluded.template;

-- name: newest_path
SELECT hour_ms, path FROM archive_hours WHERE event_type = :event_type AND revision > 0 ORDER BY hour_ms DESC LIMIT 1;

-- name: claim
INSERT INTO archive_types AS t (event_type, entry_id) VALUES (:event_type, :entry_id)
ON CONFLICT (event_type) DO UPDATE SET epoch = t.epoch + 1
RETURNING epoch, incarnation, entry_id;

-- name: replace_entry
UPDATE archive_types SET entry_id = :entry_id, incarnation = incarnation + 1, read_ms = -1
WHERE event_type = :event_type RETURNING incarnation;

-- name: forget_partitions
DELETE FROM archive_partitions WHERE event_type = :event_type;

-- name: forget_barriers
UPDATE archive_hours SET barrier = NULL WHERE event_type = :event_type AND revision = 0;

-- name: forget_empty_hours
DELETE FROM archive_hours WHERE event_type = :event_type AND revision = 0 AND NOT filled;

-- name: own
-- The row stays locked until the commit: changes of one event type wait for each other.
SELECT 1 FROM archive_types WHERE event_type = :event_type AND epoch = :epoch FOR NO KEY UPDATE;

-- name: standing
-- One row for each partition, or one row without a partition. One statement, so it is one snapshot.
SELECT epoch, incarnation, read_ms,
    coalesce((SELECT hour_ms FROM archive_hours h WHERE h.event_type = t.event_type AND revision > 0
              ORDER BY hour_ms DESC LIMIT 1), -1),
    read, archived, late, quarantined, dropped, skipped,
    partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms
FROM archive_types t LEFT JOIN archive_partitions p ON p.event_type = t.event_type
WHERE t.event_type = :event_type ORDER BY partition;

-- name: store
INSERT INTO archive_partitions
    (event_type, partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms)
VALUES (:event_type, :partition, :timeline, :position, :max_timestamp_ms, :shift, :start_ms, :end_ms)
ON CONFLICT (event_type, partition) DO UPDATE SET timeline = excluded.timeline, position = excluded.position,
    max_timestamp_ms = excluded.max_timestamp_ms, shift = excluded.shift,
    start_ms = excluded.start_ms, end_ms = excluded.end_ms;

-- name: count
UPDATE archive_types SET read_ms = CASE WHEN read_ms < :read_ms THEN :read_ms ELSE read_ms END,
    read = read + :read, archived = archived + :archived, late = late + :late,
    quarantined = quarantined + :quarantined, dropped = dropped + :dropped, skipped = skipped + :skipped
WHERE event_type = :event_type;

-- name: flagged_among
SELECT hour_ms FROM archive_hours WHERE event_type = :event_type AND hour_ms = ANY (:hours_ms) AND revision > 0;

-- name: listed_among
SELECT path FROM archive_files WHERE path = ANY (:paths);

-- name: add_file
INSERT INTO archive_files (event_type, path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256,
    min_time_ms, max_time_ms, staged)
VALUES (:event_type, :path, :kind, :hour_ms, :partition, :timeline, :first, :last, :rows, :bytes, :sha256,
    :min_time_ms, :max_time_ms, :staged);

-- name: make_stale
UPDATE archive_hours SET stale = TRUE WHERE event_type = :event_type AND hour_ms = ANY (:hours_ms);

-- name: publishing
SELECT path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256, min_time_ms, max_time_ms, staged
FROM archive_files WHERE event_type = :event_type AND NOT published ORDER BY path;

-- name: publish
UPDATE archive_files SET published = TRUE
WHERE event_type = :event_type AND NOT published AND path = ANY (:paths);

-- name: files
SELECT path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256, min_time_ms, max_time_ms, staged
FROM archive_files WHERE event_type = :event_type AND hour_ms = :hour_ms AND published ORDER BY path;

-- name: hours
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM archive_hours
WHERE hour_ms >= :from_ms AND hour_ms < :to_ms ORDER BY event_type, hour_ms;

-- name: hours_of
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM archive_hours
WHERE hour_ms >= :from_ms AND hour_ms < :to_ms AND event_type = :event_type ORDER BY hour_ms;

-- name: unflagged_data (sqlite)
-- The hint as in `unwritten_hours`.
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch
FROM archive_hours INDEXED BY unflagged_archive_data
WHERE event_type = :event_type AND filled AND revision = 0 ORDER BY hour_ms;

-- name: unflagged_data (postgres)
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM archive_hours
WHERE event_type = :event_type AND filled AND revision = 0 ORDER BY hour_ms;

-- name: fill_hour
INSERT INTO archive_hours (event_type, hour_ms, filled) VALUES (:event_type, :hour_ms, TRUE)
ON CONFLICT (event_type, hour_ms) DO UPDATE SET filled = TRUE;

-- name: add_gap
INSERT INTO archive_gaps (event_type, partition, timeline, last, after_timeline, after_offset, records, from_ms, to_ms)
VALUES (:event_type, :partition, :timeline, :last, :after_timeline, :after_offset, :records, :from_ms, :to_ms)
ON CONFLICT DO NOTHING;

-- name: gaps
SELECT partition, after_timeline, after_offset, timeline, last, records, from_ms, to_ms FROM archive_gaps
WHERE event_type = :event_type AND from_ms <= :last_ms AND to_ms >= :first_ms ORDER BY partition, timeline, last;

-- name: set_barrier
INSERT INTO archive_hours AS h (event_type, hour_ms, barrier) VALUES (:event_type, :hour_ms, :barrier)
ON CONFLICT (event_type, hour_ms) DO UPDATE SET barrier = excluded.barrier WHERE h.barrier IS NULL;

-- name: unpublished_in
SELECT 1 FROM archive_files WHERE event_type = :event_type AND hour_ms = :hour_ms AND NOT published LIMIT 1;

-- name: flag_hour
INSERT INTO archive_hours AS h (event_type, hour_ms, path, revision, flagged_ms, epoch)
VALUES (:event_type, :hour_ms, :path, 1, :now_ms, :epoch)
ON CONFLICT (event_type, hour_ms) DO UPDATE SET path = excluded.path, revision = h.revision + 1, stale = FALSE,
    flagged_ms = excluded.flagged_ms, epoch = excluded.epoch
WHERE h.revision = 0 OR h.stale;

-- name: confirm_hour
UPDATE archive_hours SET written = :revision
WHERE event_type = :event_type AND hour_ms = :hour_ms AND written < :revision AND revision >= :revision;

-- name: unwritten_hours (sqlite)
-- Without the hint SQLite uses the primary key and reads every hour of the event type.
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch
FROM archive_hours INDEXED BY unwritten_archive_hours
WHERE event_type = :event_type AND (written < revision OR stale) ORDER BY hour_ms;

-- name: unwritten_hours (postgres)
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM archive_hours
WHERE event_type = :event_type AND (written < revision OR stale) ORDER BY hour_ms;

-- name: unsettled
SELECT path, hour_ms FROM archive_hours WHERE settled < written
UNION ALL SELECT path, start_ms FROM archive_periods WHERE settled < written;

-- name: revisions
SELECT path, written FROM archive_hours WHERE written > 0 AND path = ANY (:paths)
UNION ALL SELECT path, written FROM archive_periods WHERE written > 0 AND path = ANY (:paths);

-- name: period
SELECT path, start_ms, revision, written, children FROM archive_periods WHERE path = :path;

-- name: flag_period
INSERT INTO archive_periods AS p (path, start_ms, revision, children) VALUES (:path, :start_ms, 1, :children)
ON CONFLICT (path) DO UPDATE SET revision = p.revision + 1, children = excluded.children;

-- name: confirm_period
UPDATE archive_periods SET written = :revision
WHERE path = :path AND written < :revision AND revision >= :revision;

-- name: settle_hour
UPDATE archive_hours SET settled = :revision WHERE path = :path AND settled < :revision;

-- name: settle_period
UPDATE archive_periods SET settled = :revision WHERE path = :path AND settled < :revision;

-- name: unwritten_periods
SELECT path, start_ms, revision, written, children FROM archive_periods
WHERE written < revision ORDER BY start_ms, path;

-- name: periods
SELECT path, start_ms, revision, written, children FROM archive_periods
WHERE start_ms >= :from_ms AND start_ms < :to_ms ORDER BY path;
