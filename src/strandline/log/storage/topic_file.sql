-- name: create
-- Files made before `user_version` was kept have this layout already.
-- One file is one topic. `batches` holds Arrow IPC record batches; `layout` says which columns a batch has (without
-- timestamps all records have the row's). Rows are in the order of appends and a small index finds them by offset,
-- so that a commit fills one page after the other instead of one page for every partition. `partitions` keeps where
-- a partition starts and ends once purging has removed rows; `seal` has a row while a switch closes the topic.
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
-- The offset after the newest record; purging may have left no row at all.
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
-- From the batch that holds the offset onwards; the caller stops when it has enough.
SELECT first_offset, min_timestamp, layout, payload FROM batches
WHERE partition = ?1 AND first_offset >= coalesce(
    (SELECT max(first_offset) FROM batches WHERE partition = ?1 AND first_offset <= ?2), 0)
ORDER BY first_offset;

-- name: find
-- The first batch with a record at or after a time.
SELECT first_offset, min_timestamp, layout, payload FROM batches
WHERE partition = ? AND max_timestamp >= ? ORDER BY first_offset LIMIT 1;

-- name: oldest
-- The caller stops at the first one that has to stay.
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
