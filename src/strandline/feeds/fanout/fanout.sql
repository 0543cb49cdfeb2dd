-- The fan-out of a database: how far it is, the follow graph, the queue of large authors; and its processes.

-- name: create
-- One row. `batch` is the number of the open batch or, without a plan, of the next one. `route` and `plan` are JSON.
CREATE TABLE fanout (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    route  TEXT NOT NULL,
    batch  BIGINT NOT NULL,
    clock  BIGINT NOT NULL,
    plan   TEXT
);
CREATE TABLE fanout_positions (
    source     TEXT COLLATE "C" NOT NULL,
    partition  INTEGER NOT NULL,
    cursor     TEXT NOT NULL,
    PRIMARY KEY (source, partition)
) WITHOUT ROWID;
-- The follow graph. `changed` is the operation time of the follow.
CREATE TABLE follow (
    author    TEXT COLLATE "C" NOT NULL,
    follower  TEXT COLLATE "C" NOT NULL,
    changed   BIGINT NOT NULL,
    PRIMARY KEY (author, follower)
) WITHOUT ROWID;
CREATE INDEX followed_authors ON follow (follower, author);
-- Everybody who is followed or has posted. `renewed_ms` is when the feed of own entries was last renewed; NULL if the
-- author never posted.
CREATE TABLE fanout_authors (
    name        TEXT COLLATE "C" PRIMARY KEY,
    followers   BIGINT NOT NULL,
    renewed_ms  BIGINT
) WITHOUT ROWID;
CREATE INDEX renewed_authors ON fanout_authors (renewed_ms) WHERE renewed_ms IS NOT NULL;
-- Posts of authors with very many followers. Those up to `reached` by name have the post. `turn` is the batch that
-- last delivered a chunk.
CREATE TABLE fanout_queue (
    number    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    author    TEXT COLLATE "C" NOT NULL,
    time      BIGINT NOT NULL,
    id        BIGINT NOT NULL,
    metadata  BYTEA,
    deleted   BOOLEAN NOT NULL,
    reached   TEXT COLLATE "C" NOT NULL,
    turn      BIGINT NOT NULL
);
CREATE INDEX queue_turns ON fanout_queue (turn, number);
CREATE INDEX queue_posts ON fanout_queue (author, id);
CREATE TABLE fanout_dead_letters (
    source     TEXT COLLATE "C" NOT NULL,
    partition  INTEGER NOT NULL,
    cursor     TEXT COLLATE "C" NOT NULL,
    reason     TEXT NOT NULL,
    value      BYTEA,
    PRIMARY KEY (source, partition, cursor)
) WITHOUT ROWID;
CREATE TABLE fanout_processes (
    owner       TEXT PRIMARY KEY,
    boot        TEXT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    progress    TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE fanout_leases (
    name   TEXT COLLATE "C" PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES fanout_processes (owner) ON DELETE CASCADE
) WITHOUT ROWID;

-- name: begin
INSERT INTO fanout (one, route, batch, clock) VALUES (1, :route, 1, 0) ON CONFLICT (one) DO NOTHING;

-- name: route
SELECT route FROM fanout;

-- name: state
SELECT batch, clock, plan FROM fanout;

-- name: positions
SELECT source, partition, cursor FROM fanout_positions;

-- name: open
UPDATE fanout SET plan = :plan WHERE batch = :number AND clock = :clock AND plan IS NULL RETURNING batch;

-- name: raise_clock
UPDATE fanout SET clock = CASE WHEN clock >= :clock THEN clock + 1 ELSE :clock END RETURNING clock;

-- name: close
-- No row if another process has closed the batch. On PostgreSQL, a second one waits until this transaction has ended.
UPDATE fanout SET batch = batch + 1, plan = NULL, clock = CASE WHEN clock > :clock THEN clock ELSE :clock END
WHERE batch = :number AND plan IS NOT NULL RETURNING batch;

-- name: move
INSERT INTO fanout_positions (source, partition, cursor) VALUES (:source, :partition, :cursor)
ON CONFLICT (source, partition) DO UPDATE SET cursor = excluded.cursor;

-- name: add_edge
INSERT INTO follow (author, follower, changed) VALUES (:author, :follower, :changed)
ON CONFLICT (author, follower) DO UPDATE SET changed = excluded.changed;

-- name: remove_edge
DELETE FROM follow WHERE author = :author AND follower = :follower;

-- name: count_followers
INSERT INTO fanout_authors AS a (name, followers) VALUES (:author, :count)
ON CONFLICT (name) DO UPDATE SET followers = a.followers + excluded.followers;

-- name: posted
INSERT INTO fanout_authors AS a (name, followers, renewed_ms) VALUES (:author, 0, :now_ms)
ON CONFLICT (name) DO UPDATE SET renewed_ms = coalesce(a.renewed_ms, excluded.renewed_ms);

-- name: sizes
SELECT name, followers FROM fanout_authors WHERE name = ANY (:authors);

-- name: edges_of
SELECT author, follower FROM follow WHERE follower = ANY (:followers);

-- name: followers_of
SELECT author, follower FROM follow WHERE author = ANY (:authors);

-- name: followers_after
SELECT follower FROM follow WHERE author = :author AND follower > :after ORDER BY follower LIMIT :limit;

-- name: users_after
SELECT DISTINCT follower FROM follow WHERE follower > :after ORDER BY follower LIMIT :limit;

-- name: authors_after
SELECT name FROM fanout_authors WHERE name > :after ORDER BY name LIMIT :limit;

-- name: idle_authors
SELECT name FROM fanout_authors WHERE renewed_ms < :before_ms ORDER BY renewed_ms LIMIT :limit;

-- name: renewed
UPDATE fanout_authors SET renewed_ms = :now_ms WHERE name = ANY (:authors);

-- name: queue
INSERT INTO fanout_queue (author, time, id, metadata, deleted, reached, turn)
VALUES (:author, :time, :id, :metadata, :deleted, '', :turn);

-- name: chunks
SELECT number, author, time, id, metadata, deleted, reached FROM fanout_queue ORDER BY turn, number LIMIT :limit;

-- name: waiting_deletions
SELECT author, id FROM fanout_queue WHERE author = ANY (:authors) AND deleted;

-- name: waiting_posts
SELECT author, id, reached FROM fanout_queue WHERE author = ANY (:authors) AND NOT deleted;

-- name: queue_length
SELECT count(*) FROM fanout_queue;

-- name: reach
UPDATE fanout_queue SET reached = :reached, turn = :turn WHERE number = :number;

-- name: leave_queue
DELETE FROM fanout_queue WHERE number = :number;

-- name: cancel
-- A post that was deleted is delivered to no other follower.
DELETE FROM fanout_queue WHERE author = :author AND id = :id AND NOT deleted;

-- name: add_letter
INSERT INTO fanout_dead_letters (source, partition, cursor, reason, value)
VALUES (:source, :partition, :cursor, :reason, :value) ON CONFLICT (source, partition, cursor) DO NOTHING;

-- name: letters
SELECT source, partition, cursor, reason, value FROM fanout_dead_letters
WHERE (source, partition, cursor) > (:source, :partition, :cursor)
ORDER BY source, partition, cursor LIMIT :limit;

-- include: process_leases.sql

-- part: processes
fanout_processes

-- part: leases
fanout_leases

-- part: progress
progress
