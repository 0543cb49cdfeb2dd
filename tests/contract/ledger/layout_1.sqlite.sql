-- A ledger of a release before the table of layouts, with rows in each table.
-- One row for each event type; claims increment its epoch. Each record that was read has exactly one outcome.
CREATE TABLE types (
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
CREATE TABLE terms (
    event_type  TEXT NOT NULL,
    from_ms     INTEGER NOT NULL,
    to_ms       INTEGER,
    PRIMARY KEY (event_type, from_ms)
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_open_term ON terms (event_type) WHERE to_ms IS NULL;
-- The position up to which a partition is consumed, and its last finished shift.
CREATE TABLE partitions (
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
CREATE TABLE files (
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
CREATE INDEX files_of_hour ON files (event_type, hour_ms);
CREATE INDEX publishing_files ON files (event_type) WHERE published = 0;
-- Revision 0 is not flagged. `written` is the revision in the files, `settled` the one in the flag above.
CREATE TABLE hours (
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
CREATE INDEX hours_by_time ON hours (hour_ms);
CREATE INDEX flagged_hours ON hours (event_type, hour_ms) WHERE revision > 0;
CREATE INDEX unwritten_hours ON hours (event_type, hour_ms) WHERE written < revision OR stale = 1;
CREATE INDEX unsettled_hours ON hours (hour_ms) WHERE settled < written;
CREATE TABLE periods (
    path      TEXT PRIMARY KEY,
    start_ms  INTEGER NOT NULL,
    revision  INTEGER NOT NULL,
    written   INTEGER NOT NULL DEFAULT 0,
    settled   INTEGER NOT NULL DEFAULT 0,
    children  TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX periods_by_time ON periods (start_ms);
CREATE INDEX unwritten_periods ON periods (start_ms) WHERE written < revision;
CREATE INDEX unsettled_periods ON periods (start_ms) WHERE settled < written;
-- `expires_ms` is on the clock of the machine's start `boot`.
CREATE TABLE owners (
    owner       TEXT PRIMARY KEY,
    boot        TEXT NOT NULL,
    expires_ms  INTEGER NOT NULL,
    told        TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE leases (
    name   TEXT PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES owners (owner) ON DELETE CASCADE
) WITHOUT ROWID;
PRAGMA user_version = 1;

INSERT INTO types VALUES ('orders', 'id-1', 2, 3, 1714564800000, 25, 20, 2, 2, 1, 4);
INSERT INTO terms VALUES ('clicks', 1714557600000, 1714564800000), ('orders', 1714557600000, NULL);
INSERT INTO partitions VALUES ('orders', 0, 1, 24, 1714564800000, 2, 1714564799995, 1714564799999);
INSERT INTO files VALUES
    ('data/1714561200000/a.parquet', 'orders', 1714561200000, 'data', TRUE, 0, 1, 0, 9, 10, 1000, 'abc', 1714561200000, 1714564799999, '_staging/a'),
    ('data/1714564800000/b.parquet', 'orders', 1714564800000, 'data', FALSE, 0, 1, 10, 19, 10, 1000, 'def', 1714564800000, 1714564800000, '_staging/b');
INSERT INTO hours VALUES
    ('orders', 1714557600000, 'd/10/orders', 1, 1, 0, TRUE, NULL, 1714561200000, 2),
    ('orders', 1714561200000, 'd/11/orders', 2, 1, 1, FALSE, NULL, 1714564800000, 3),
    ('orders', 1714564800000, NULL, 0, 0, 0, FALSE, '{"read_ms":1714564830000,"ends":{"0":[1,24]}}', -1, 0);
INSERT INTO periods VALUES ('d/09', 1714554000000, 1, 1, 0, '{"d/09/orders":1}'), ('d/10', 1714557600000, 1, 0, 0, '{"d/10/orders":1}');
INSERT INTO owners VALUES ('old', 'this boot', 1714564803000, '[]');
INSERT INTO leases VALUES ('orders', 'old');
