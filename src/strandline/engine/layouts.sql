-- The layout version of each room's tables in this database.

-- name: is_made (sqlite)
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'layouts';

-- name: is_made (postgres)
-- Not `to_regclass`: it reads the backend's cache, which is not refreshed while waiting for an advisory lock.
SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = 'strandline' AND tablename = 'layouts');

-- name: turn (sqlite)
-- The transaction already holds the write lock.
SELECT 1;

-- name: turn (postgres)
-- One process at a time creates or changes tables, for all rooms.
SELECT pg_advisory_xact_lock(hashtextextended('strandline', 0));

-- name: make (sqlite)
CREATE TABLE IF NOT EXISTS layouts (room TEXT PRIMARY KEY, version INTEGER NOT NULL);
-- Releases without this table check `user_version`, and refuse a version larger than they know.
PRAGMA user_version = 1000;

-- name: make (postgres)
CREATE SCHEMA IF NOT EXISTS strandline;
CREATE TABLE IF NOT EXISTS layouts (room TEXT PRIMARY KEY, version INTEGER NOT NULL);

-- name: version
SELECT version FROM layouts WHERE room = :room;

-- name: set_version
INSERT INTO layouts (room, version) VALUES (:room, :version)
ON CONFLICT (room) DO UPDATE SET version = excluded.version;
