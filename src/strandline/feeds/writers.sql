-- Which processes write to feeds.

-- name: create
-- A row that is still there after `until_ms` was left by a process that was killed.
CREATE TABLE feed_writer (
    owner     TEXT PRIMARY KEY,
    until_ms  BIGINT NOT NULL
);

-- name: renew
INSERT INTO feed_writer (owner, until_ms) VALUES (:owner, :until_ms)
ON CONFLICT (owner) DO UPDATE SET until_ms = excluded.until_ms;

-- name: killed
SELECT owner FROM feed_writer WHERE until_ms < :now_ms;

-- name: remove
DELETE FROM feed_writer WHERE owner = ANY (:owners);
