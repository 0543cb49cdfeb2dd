-- name: turn
-- One at a time makes the tables, of all rooms.
SELECT pg_advisory_xact_lock(hashtextextended('strandline', 0));

-- name: is_made
SELECT to_regclass('strandline.archive_types') IS NOT NULL;

-- name: create
-- An event type's row is what claims are counted on, and locked by whoever changes anything of the event type;
-- every row that was read went one way.
CREATE SCHEMA IF NOT EXISTS strandline;
CREATE TABLE strandline.archive_types (
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
CREATE TABLE strandline.archive_terms (
    event_type  TEXT COLLATE "C" NOT NULL,
    from_ms     BIGINT NOT NULL,
    to_ms       BIGINT,
    PRIMARY KEY (event_type, from_ms)
);
CREATE UNIQUE INDEX one_open_archive_term ON strandline.archive_terms (event_type) WHERE to_ms IS NULL;
-- Consumed up to where, and the last finished shift.
CREATE TABLE strandline.archive_partitions (
    event_type        TEXT COLLATE "C" NOT NULL,
    partition         INTEGER NOT NULL,
    timeline          BIGINT NOT NULL,
    position          BIGINT NOT NULL,
    max_timestamp_ms  BIGINT NOT NULL,
    shift             BIGINT NOT NULL,
    start_ms          BIGINT NOT NULL,
    end_ms            BIGINT NOT NULL,
    PRIMARY KEY (event_type, partition)
);
CREATE TABLE strandline.archive_files (
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
);
CREATE INDEX archive_files_of_hour ON strandline.archive_files (event_type, hour_ms);
CREATE INDEX publishing_archive_files ON strandline.archive_files (event_type) WHERE NOT published;
-- Revision 0 is not flagged; `written` is in the files, `settled` is in the flag above.
CREATE TABLE strandline.archive_hours (
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
    PRIMARY KEY (event_type, hour_ms)
);
CREATE INDEX archive_hours_by_time ON strandline.archive_hours (hour_ms);
CREATE INDEX flagged_archive_hours ON strandline.archive_hours (event_type, hour_ms) WHERE revision > 0;
CREATE INDEX unwritten_archive_hours ON strandline.archive_hours (event_type, hour_ms)
WHERE written < revision OR stale;
CREATE INDEX unsettled_archive_hours ON strandline.archive_hours (hour_ms) WHERE settled < written;
CREATE TABLE strandline.archive_periods (
    path      TEXT COLLATE "C" PRIMARY KEY,
    start_ms  BIGINT NOT NULL,
    revision  BIGINT NOT NULL,
    written   BIGINT NOT NULL DEFAULT 0,
    settled   BIGINT NOT NULL DEFAULT 0,
    children  TEXT NOT NULL
);
CREATE INDEX archive_periods_by_time ON strandline.archive_periods (start_ms);
CREATE INDEX unwritten_archive_periods ON strandline.archive_periods (start_ms) WHERE written < revision;
CREATE INDEX unsettled_archive_periods ON strandline.archive_periods (start_ms) WHERE settled < written;
-- On the server's clock.
CREATE TABLE strandline.archive_owners (
    owner       TEXT PRIMARY KEY,
    expires_ms  BIGINT NOT NULL,
    told        TEXT NOT NULL
);
CREATE TABLE strandline.archive_leases (
    name   TEXT COLLATE "C" PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES strandline.archive_owners (owner) ON DELETE CASCADE
);

-- name: now
-- One clock for all machines; tests have their own.
SELECT coalesce(%s::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- name: lease_turn
-- Leases change hands one after the other.
SELECT pg_advisory_xact_lock(hashtextextended('strandline archive leases', 0));

-- name: renew
INSERT INTO strandline.archive_owners (owner, expires_ms, told) VALUES (%s, %s, %s)
ON CONFLICT (owner) DO UPDATE SET expires_ms = excluded.expires_ms, told = excluded.told;

-- name: bury
DELETE FROM strandline.archive_owners WHERE expires_ms <= %s;

-- name: owners
SELECT owner, told FROM strandline.archive_owners
WHERE expires_ms > coalesce(%s::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY owner;

-- name: has_lease
SELECT 1 FROM strandline.archive_leases l JOIN strandline.archive_owners o ON o.owner = l.owner
WHERE l.name = %s AND l.owner = %s
    AND o.expires_ms > coalesce(%s::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- name: take
INSERT INTO strandline.archive_leases AS l (name, owner)
SELECT %s, owner FROM strandline.archive_owners WHERE owner = %s
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner WHERE l.owner = excluded.owner
RETURNING name;

-- name: release
DELETE FROM strandline.archive_leases WHERE owner = %s AND name = %s;

-- name: leave
DELETE FROM strandline.archive_owners WHERE owner = %s;

-- name: terms
SELECT event_type, from_ms, to_ms FROM strandline.archive_terms ORDER BY event_type, from_ms;

-- name: open_term
INSERT INTO strandline.archive_terms (event_type, from_ms) VALUES (%s, %s) ON CONFLICT DO NOTHING;

-- name: drop_empty_term
DELETE FROM strandline.archive_terms WHERE event_type = %s AND to_ms IS NULL AND from_ms >= %s
RETURNING event_type;

-- name: close_term
UPDATE strandline.archive_terms SET to_ms = %s WHERE event_type = %s AND to_ms IS NULL RETURNING event_type;

-- name: claim
INSERT INTO strandline.archive_types AS t (event_type, entry_id) VALUES (%s, %s)
ON CONFLICT (event_type) DO UPDATE SET epoch = t.epoch + 1
RETURNING epoch, incarnation, entry_id;

-- name: made_anew
UPDATE strandline.archive_types SET entry_id = %s, incarnation = incarnation + 1, read_ms = -1
WHERE event_type = %s RETURNING incarnation;

-- name: forget_partitions
DELETE FROM strandline.archive_partitions WHERE event_type = %s;

-- name: forget_barriers
DELETE FROM strandline.archive_hours WHERE event_type = %s AND revision = 0;

-- name: own
SELECT 1 FROM strandline.archive_types WHERE event_type = %s AND epoch = %s FOR NO KEY UPDATE;

-- name: standing
-- A row for every partition, or one of nothing: one statement, so one moment.
SELECT epoch, incarnation, read_ms,
    coalesce((SELECT hour_ms FROM strandline.archive_hours h WHERE h.event_type = t.event_type AND revision > 0
              ORDER BY hour_ms DESC LIMIT 1), -1),
    read, archived, late, quarantined, dropped, skipped,
    partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms
FROM strandline.archive_types t LEFT JOIN strandline.archive_partitions p ON p.event_type = t.event_type
WHERE t.event_type = %s ORDER BY partition;

-- name: partitions
SELECT partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms
FROM strandline.archive_partitions WHERE event_type = %s ORDER BY partition;

-- name: store
INSERT INTO strandline.archive_partitions
    (event_type, partition, timeline, position, max_timestamp_ms, shift, start_ms, end_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (event_type, partition) DO UPDATE SET timeline = excluded.timeline, position = excluded.position,
    max_timestamp_ms = excluded.max_timestamp_ms, shift = excluded.shift,
    start_ms = excluded.start_ms, end_ms = excluded.end_ms;

-- name: count
UPDATE strandline.archive_types SET read_ms = greatest(read_ms, %s), read = read + %s, archived = archived + %s,
    late = late + %s, quarantined = quarantined + %s, dropped = dropped + %s, skipped = skipped + %s
WHERE event_type = %s;

-- name: flagged_among
SELECT hour_ms FROM strandline.archive_hours WHERE event_type = %s AND hour_ms = ANY(%s::bigint[]) AND revision > 0;

-- name: listed_among
SELECT path FROM strandline.archive_files WHERE path = ANY(%s::text[]);

-- name: add_file
INSERT INTO strandline.archive_files (event_type, path, kind, hour_ms, partition, timeline, first, last, rows,
    bytes, sha256, min_time_ms, max_time_ms, staged)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: make_stale
UPDATE strandline.archive_hours SET stale = TRUE WHERE event_type = %s AND hour_ms = ANY(%s::bigint[]);

-- name: publishing
SELECT path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256, min_time_ms, max_time_ms, staged
FROM strandline.archive_files WHERE event_type = %s AND NOT published ORDER BY path;

-- name: publish
UPDATE strandline.archive_files SET published = TRUE WHERE event_type = %s AND path = ANY(%s::text[]);

-- name: files
SELECT path, kind, hour_ms, partition, timeline, first, last, rows, bytes, sha256, min_time_ms, max_time_ms, staged
FROM strandline.archive_files WHERE event_type = %s AND hour_ms = %s AND published ORDER BY path;

-- name: hours
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM strandline.archive_hours
WHERE hour_ms >= %s AND hour_ms < %s ORDER BY event_type, hour_ms;

-- name: hours_of
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM strandline.archive_hours
WHERE hour_ms >= %s AND hour_ms < %s AND event_type = %s ORDER BY hour_ms;

-- name: set_barrier
INSERT INTO strandline.archive_hours AS h (event_type, hour_ms, barrier) VALUES (%s, %s, %s)
ON CONFLICT (event_type, hour_ms) DO UPDATE SET barrier = excluded.barrier WHERE h.barrier IS NULL;

-- name: unpublished_in
SELECT 1 FROM strandline.archive_files WHERE event_type = %s AND hour_ms = %s AND NOT published LIMIT 1;

-- name: flag_hour
INSERT INTO strandline.archive_hours AS h (event_type, hour_ms, path, revision, flagged_ms, epoch)
VALUES (%s, %s, %s, 1, %s, %s)
ON CONFLICT (event_type, hour_ms) DO UPDATE SET path = excluded.path, revision = h.revision + 1, stale = FALSE,
    flagged_ms = excluded.flagged_ms, epoch = excluded.epoch
WHERE h.revision = 0 OR h.stale;

-- name: confirm_hour
UPDATE strandline.archive_hours SET written = greatest(written, %s)
WHERE event_type = %s AND hour_ms = %s AND revision >= %s;

-- name: unwritten_hours
SELECT event_type, hour_ms, revision, written, stale, barrier, flagged_ms, epoch FROM strandline.archive_hours
WHERE event_type = %s AND (written < revision OR stale) ORDER BY hour_ms;

-- name: unsettled
SELECT path, hour_ms FROM strandline.archive_hours WHERE settled < written
UNION ALL SELECT path, start_ms FROM strandline.archive_periods WHERE settled < written;

-- name: revisions
SELECT path, written FROM strandline.archive_hours WHERE written > 0 AND path = ANY(%s::text[])
UNION ALL SELECT path, written FROM strandline.archive_periods WHERE written > 0 AND path = ANY(%s::text[]);

-- name: period_turn
-- There may be no row to lock yet.
SELECT pg_advisory_xact_lock(hashtextextended(%s, 1));

-- name: period
SELECT path, start_ms, revision, written, children FROM strandline.archive_periods WHERE path = %s;

-- name: flag_period
INSERT INTO strandline.archive_periods AS p (path, start_ms, revision, children) VALUES (%s, %s, 1, %s)
ON CONFLICT (path) DO UPDATE SET revision = p.revision + 1, children = excluded.children;

-- name: confirm_period
UPDATE strandline.archive_periods SET written = greatest(written, %s) WHERE path = %s AND revision >= %s;

-- name: settle_hour
UPDATE strandline.archive_hours SET settled = greatest(settled, %s) WHERE path = %s;

-- name: settle_period
UPDATE strandline.archive_periods SET settled = greatest(settled, %s) WHERE path = %s;

-- name: unwritten_periods
SELECT path, start_ms, revision, written, children FROM strandline.archive_periods
WHERE written < revision ORDER BY start_ms, path;

-- name: periods
SELECT path, start_ms, revision, written, children FROM strandline.archive_periods
WHERE start_ms >= %s AND start_ms < %s ORDER BY path;
