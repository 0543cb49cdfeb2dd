-- Which layout the tables of each room have in this database.

-- name: is_made (sqlite)
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'layouts';

-- name: is_made (postgres)
-- Not `to_regclass`: it answers from the backend's cache, which a wait for an advisory lock does not refresh.
SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = 'strandline' AND tablename = 'layouts');

-- name: turn (sqlite)
-- The transaction has the write lock already.
SELECT 1;

-- name: turn (postgres)
-- One process at a time makes or changes tables, of whatever room.
SELECT pg_advisory_xact_lock(hashtextextended('strandline', 0));

-- name: make (sqlite)
CREATE TABLE IF NOT EXISTS layouts (room TEXT PRIMARY KEY, version INTEGER NOT NULL);
-- Releases before this table looked here, and refuse what is larger than they know.
PRAGMA user_version = 1000;

-- name: make (postgres)
CREATE SCHEMA IF NOT EXISTS strandline;
CREATE TABLE IF NOT EXISTS layouts (room TEXT PRIMARY KEY, version INTEGER NOT NULL);

-- name: version
SELECT version FROM layouts WHERE room = :room;

-- name: set_version
INSERT INTO layouts (room, version) VALUES (:room, :version)
ON CONFLICT (room) DO UPDATE SET version = excluded.version;
