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

-- name: add
INSERT INTO dead_operation (failed_ms, kind, reason, operation) VALUES (:failed_ms, :kind, :reason, :operation);

-- name: after
SELECT number, failed_ms, reason, operation FROM dead_operation WHERE number > :after ORDER BY number LIMIT :limit;

-- name: counts
SELECT kind, count(*) FROM dead_operation GROUP BY kind;
