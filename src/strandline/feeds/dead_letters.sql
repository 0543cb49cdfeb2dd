-- Operations on feeds that were refused or given up.

-- name: create
-- `operation` is an event of `feeds.operations`.
CREATE TABLE dead_operation (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    failed_ms  BIGINT NOT NULL,
    kind       TEXT NOT NULL,
    reason     TEXT NOT NULL,
    operation  BYTEA NOT NULL
);
-- What a process retries. A row that is still there after `until_ms` was left by a process that was killed.
CREATE TABLE waiting_operation (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    until_ms   BIGINT NOT NULL,
    reason     TEXT NOT NULL,
    operation  BYTEA NOT NULL
);

-- name: add
INSERT INTO dead_operation (failed_ms, kind, reason, operation) VALUES (:failed_ms, :kind, :reason, :operation);

-- name: after
SELECT number, failed_ms, reason, operation FROM dead_operation WHERE number > :after ORDER BY number LIMIT :limit;

-- name: counts
SELECT kind, count(*) FROM dead_operation GROUP BY kind;

-- name: wait
INSERT INTO waiting_operation (until_ms, reason, operation) VALUES (:until_ms, :reason, :operation) RETURNING number;

-- name: settle
DELETE FROM waiting_operation WHERE number = :number RETURNING number;

-- name: overdue
SELECT number, reason, operation FROM waiting_operation WHERE until_ms < :now_ms ORDER BY number LIMIT :limit;
