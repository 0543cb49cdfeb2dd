-- name: create
-- Files that were created before `user_version` was used already have this layout.
-- One file is one topic. `batches` holds Arrow IPC record batches; `layout` is the set of columns of a batch
-- (without timestamps, all records have the row's). Rows are in the order of appends, and an index finds them by
-- offset. So a commit fills one page after the other instead of one page per partition. `purged_until` is the
-- offset after the last purged record; `seal` has a row while a switch closes the topic.
CREATE TABLE IF NOT EXISTS batches (
    partition      INTEGER NOT NULL,
    first_offset   INTEGER NOT NULL,
    records        INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    min_timestamp  INTEGER NOT NULL,
    max_timestamp  INTEGER NOT NULL,
    layout         INTEGER NOT NULL,
    payload        BLOB    NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS batches_by_offset ON batches (partition, first_offset);
CREATE TABLE IF NOT EXISTS partitions (
    partition     INTEGER PRIMARY KEY,
    purged_until  INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS seal (token TEXT NOT NULL);

-- name: add_partition
INSERT OR IGNORE INTO partitions (partition) VALUES (?);

-- name: next_offset
-- The offset after the newest record, also if purging has deleted all rows.
SELECT coalesce(
    (SELECT first_offset + records FROM batches
     WHERE partition = p.partition ORDER BY first_offset DESC LIMIT 1), p.purged_until)
FROM partitions p WHERE p.partition = ?;

-- name: bounds
SELECT p.partition,
    coalesce((SELECT first_offset FROM batches
              WHERE partition = p.partition ORDER BY first_offset LIMIT 1), p.purged_until),
    coalesce((SELECT first_offset + records FROM batches
              WHERE partition = p.partition ORDER BY first_offset DESC LIMIT 1), p.purged_until) - 1
FROM partitions p ORDER BY p.partition;

-- name: insert_batch
INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: read
-- From the batch that contains the offset on; the caller stops when it has enough records.
SELECT first_offset, min_timestamp, layout, payload FROM batches
WHERE partition = ?1 AND first_offset >= coalesce(
    (SELECT max(first_offset) FROM batches WHERE partition = ?1 AND first_offset <= ?2), 0)
ORDER BY first_offset;

-- name: find
-- The first batch that has a record at or after the time.
SELECT first_offset, min_timestamp, layout, payload FROM batches
WHERE partition = ? AND max_timestamp >= ? ORDER BY first_offset LIMIT 1;

-- name: oldest
-- The caller stops at the first batch that has not expired.
SELECT first_offset + records, max_timestamp, bytes FROM batches WHERE partition = ? ORDER BY first_offset;

-- name: purge
DELETE FROM batches WHERE partition = ? AND first_offset < ?;

-- name: set_purged
UPDATE partitions SET purged_until = ? WHERE partition = ?;

-- name: seal
INSERT INTO seal (token) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM seal);

-- name: unseal
DELETE FROM seal WHERE token = ?;

-- name: sealed_by
SELECT token FROM seal;
