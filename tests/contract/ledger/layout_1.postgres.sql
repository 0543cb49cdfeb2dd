-- A ledger of a release before the table of layouts, with rows in each table.
-- One row for each event type; claims increment its epoch, and every change of the event type locks it.
-- Each record that was read has exactly one outcome.
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
-- The position up to which a partition is consumed, and its last finished shift.
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
-- Revision 0 is not flagged. `written` is the revision in the files, `settled` the one in the flag above.
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
-- `expires_ms` is on the server's clock.
CREATE TABLE strandline.archive_owners (
    owner       TEXT PRIMARY KEY,
    expires_ms  BIGINT NOT NULL,
    told        TEXT NOT NULL
);
CREATE TABLE strandline.archive_leases (
    name   TEXT COLLATE "C" PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES strandline.archive_owners (owner) ON DELETE CASCADE
);

INSERT INTO strandline.archive_types VALUES ('orders', 'id-1', 2, 3, 1714564800000, 25, 20, 2, 2, 1, 4);
INSERT INTO strandline.archive_terms VALUES ('clicks', 1714557600000, 1714564800000), ('orders', 1714557600000, NULL);
INSERT INTO strandline.archive_partitions VALUES ('orders', 0, 1, 24, 1714564800000, 2, 1714564799995, 1714564799999);
INSERT INTO strandline.archive_files VALUES
    ('data/1714561200000/a.parquet', 'orders', 1714561200000, 'data', TRUE, 0, 1, 0, 9, 10, 1000, 'abc', 1714561200000, 1714564799999, '_staging/a'),
    ('data/1714564800000/b.parquet', 'orders', 1714564800000, 'data', FALSE, 0, 1, 10, 19, 10, 1000, 'def', 1714564800000, 1714564800000, '_staging/b');
INSERT INTO strandline.archive_hours VALUES
    ('orders', 1714557600000, 'd/10/orders', 1, 1, 0, TRUE, NULL, 1714561200000, 2),
    ('orders', 1714561200000, 'd/11/orders', 2, 1, 1, FALSE, NULL, 1714564800000, 3),
    ('orders', 1714564800000, NULL, 0, 0, 0, FALSE, '{"read_ms":1714564830000,"ends":{"0":[1,24]}}', -1, 0);
INSERT INTO strandline.archive_periods VALUES ('d/09', 1714554000000, 1, 1, 0, '{"d/09/orders":1}'), ('d/10', 1714557600000, 1, 0, 0, '{"d/10/orders":1}');
INSERT INTO strandline.archive_owners VALUES ('old', 1714564803000, '[]');
INSERT INTO strandline.archive_leases VALUES ('orders', 'old');
