-- name: create
-- Files that were created before `user_version` was used have the first layout.
-- One file is one topic. `batches` holds Arrow IPC record batches; `layout` is the set of columns of a batch
-- (without timestamps, all records have the row's). Rows are in the order of appends, and an index finds them by
-- offset. So a commit fills one page after the other instead of one page per partition.
-- `small_batches` holds appends of a few records in a form that is cheap to write: a commit changes one page. They
-- are soon moved to `batches`. `stored` is both; its columns have the same types on both sides, so that SQLite
-- merges two searches by offset instead of sorting.
-- `checksum` is NULL in rows of the first layout, which had none. `purged_until` is the offset after the last purged
-- record; `seal` has a row while a switch closes the topic; `fences` has the newest holder of every fence.
CREATE TABLE IF NOT EXISTS batches (
    partition      INTEGER NOT NULL,
    first_offset   INTEGER NOT NULL,
    records        INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    min_timestamp  INTEGER NOT NULL,
    max_timestamp  INTEGER NOT NULL,
    layout         INTEGER NOT NULL,
    payload        BLOB    NOT NULL,
    checksum       INTEGER
);
CREATE UNIQUE INDEX IF NOT EXISTS batches_by_offset ON batches (partition, first_offset);
CREATE TABLE IF NOT EXISTS small_batches (
    partition     INTEGER NOT NULL,
    first_offset  INTEGER NOT NULL,
    records       INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    timestamp     INTEGER NOT NULL,
    layout        INTEGER NOT NULL,
    payload       BLOB    NOT NULL,
    checksum      INTEGER NOT NULL,
    PRIMARY KEY (partition, first_offset)
) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS stored AS
SELECT partition, first_offset, records, bytes, min_timestamp, max_timestamp, layout, payload, checksum
FROM batches
UNION ALL
SELECT partition, first_offset, records, bytes, timestamp, timestamp, layout, payload, checksum
FROM small_batches;
CREATE TABLE IF NOT EXISTS partitions (
    partition     INTEGER PRIMARY KEY,
    purged_until  INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS seal (token TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS fences (
    name   TEXT PRIMARY KEY,
    epoch  INTEGER NOT NULL
) WITHOUT ROWID;

-- name: migration_2
ALTER TABLE batches ADD COLUMN checksum INTEGER;
CREATE TABLE small_batches (
    partition     INTEGER NOT NULL,
    first_offset  INTEGER NOT NULL,
    records       INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    timestamp     INTEGER NOT NULL,
    layout        INTEGER NOT NULL,
    payload       BLOB    NOT NULL,
    checksum      INTEGER NOT NULL,
    PRIMARY KEY (partition, first_offset)
) WITHOUT ROWID;
CREATE VIEW stored AS
SELECT partition, first_offset, records, bytes, min_timestamp, max_timestamp, layout, payload, checksum
FROM batches
UNION ALL
SELECT partition, first_offset, records, bytes, timestamp, timestamp, layout, payload, checksum
FROM small_batches;

-- name: migration_3
CREATE TABLE fences (
    name   TEXT PRIMARY KEY,
    epoch  INTEGER NOT NULL
) WITHOUT ROWID;

-- name: add_partition
INSERT OR IGNORE INTO partitions (partition) VALUES (?);

-- name: next_offset
-- The offset after the newest record, also if purging has deleted all rows.
SELECT max(p.purged_until,
    coalesce((SELECT first_offset + records FROM batches
              WHERE partition = p.partition ORDER BY first_offset DESC LIMIT 1), 0),
    coalesce((SELECT first_offset + records FROM small_batches
              WHERE partition = p.partition ORDER BY first_offset DESC LIMIT 1), 0))
FROM partitions p WHERE p.partition = ?;

-- name: count_small_batches
SELECT count(*) FROM small_batches WHERE partition = ?;

-- name: bounds
SELECT p.partition,
    coalesce((SELECT first_offset FROM stored
              WHERE partition = p.partition ORDER BY first_offset LIMIT 1), p.purged_until),
    max(p.purged_until,
        coalesce((SELECT first_offset + records FROM batches
                  WHERE partition = p.partition ORDER BY first_offset DESC LIMIT 1), 0),
        coalesce((SELECT first_offset + records FROM small_batches
                  WHERE partition = p.partition ORDER BY first_offset DESC LIMIT 1), 0)) - 1
FROM partitions p ORDER BY p.partition;

-- name: insert_batch
INSERT INTO batches (partition, first_offset, records, bytes, min_timestamp, max_timestamp, layout, payload, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_small_batch
INSERT INTO small_batches (partition, first_offset, records, bytes, timestamp, layout, payload, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: read
-- From the batch that contains the offset on; the caller stops when it has enough records.
SELECT first_offset, records, min_timestamp, max_timestamp, layout, payload, checksum FROM stored
WHERE partition = ?1 AND first_offset >= coalesce(
    (SELECT first_offset FROM stored WHERE partition = ?1 AND first_offset <= ?2
     ORDER BY first_offset DESC LIMIT 1), 0)
ORDER BY first_offset;

-- name: find
-- The first batch that has a record at or after the time.
SELECT first_offset, records, min_timestamp, max_timestamp, layout, payload, checksum FROM stored
WHERE partition = ? AND max_timestamp >= ? ORDER BY first_offset LIMIT 1;

-- name: oldest
-- The caller stops at the first batch that has not expired.
SELECT first_offset, records, max_timestamp, bytes FROM stored WHERE partition = ? ORDER BY first_offset;

-- name: with_small_batches
SELECT partition FROM partitions p
WHERE EXISTS (SELECT 1 FROM small_batches WHERE partition = p.partition);

-- name: small_from
-- From the first small batch at or after an offset on. The batch before it is included if it is not full.
SELECT first_offset, records, min_timestamp, max_timestamp, layout, payload, checksum FROM stored
WHERE partition = ?1 AND first_offset >= (
    SELECT coalesce(
        (SELECT CASE WHEN records < ?3 AND bytes < ?4 THEN first_offset END FROM batches
         WHERE partition = ?1 AND first_offset >= ?2 AND first_offset < small.first_offset
         ORDER BY first_offset DESC LIMIT 1), small.first_offset)
    FROM small_batches small WHERE partition = ?1 AND first_offset >= ?2 ORDER BY first_offset LIMIT 1)
ORDER BY first_offset;

-- name: count
SELECT count(*), sum(records) FROM stored WHERE partition = ?1 AND first_offset >= ?2 AND first_offset < ?3;

-- name: delete_batches
DELETE FROM batches WHERE partition = ?1 AND first_offset >= ?2 AND first_offset < ?3;

-- name: delete_small_batches
DELETE FROM small_batches WHERE partition = ?1 AND first_offset >= ?2 AND first_offset < ?3;

-- name: set_purged
UPDATE partitions SET purged_until = ? WHERE partition = ?;

-- name: seal
INSERT INTO seal (token) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM seal);

-- name: unseal
DELETE FROM seal WHERE token = ?;

-- name: sealed_by
SELECT token FROM seal;

-- name: raise_fence
INSERT INTO fences (name, epoch) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch >= fences.epoch
RETURNING epoch;

-- name: fence
SELECT epoch FROM fences WHERE name = ?;
