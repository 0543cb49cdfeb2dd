-- Feeds and their records.

-- name: create
-- A feed exists if it has an epoch. `dropped` is the time of its drop, only while it does not exist. A row without
-- either is there for its tombstones. Ids at or below `floor` are refused.
CREATE TABLE feed (
    number   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     TEXT COLLATE "C" NOT NULL UNIQUE,
    epoch    BIGINT,
    dropped  BIGINT,
    floor    BIGINT,
    read_ms  BIGINT NOT NULL
);
CREATE INDEX unread_feeds ON feed (read_ms) WHERE epoch IS NOT NULL;
CREATE INDEX dropped_feeds ON feed (dropped) WHERE dropped IS NOT NULL;
-- In order of ids, so that the newest entries are next to each other. `kind` is a number of `records.py`: 1 to 4.
-- `arrival` gives the order of arrival in a feed.
CREATE TABLE record (
    feed      BIGINT NOT NULL,
    id        BIGINT NOT NULL,
    time      BIGINT NOT NULL,
    kind      INTEGER NOT NULL,
    arrival   BIGINT NOT NULL,
    metadata  BYTEA,
    PRIMARY KEY (feed, id, time, kind)
) WITHOUT ROWID;
CREATE INDEX tombstones ON record (time) WHERE kind = 4;
CREATE TABLE arrivals (next BIGINT NOT NULL);
INSERT INTO arrivals (next) VALUES (0);
CREATE TABLE position (
    source         TEXT COLLATE "C" NOT NULL,
    partition      INTEGER NOT NULL,
    cursor_order   INTEGER NOT NULL,
    cursor_offset  BIGINT NOT NULL,
    PRIMARY KEY (source, partition)
) WITHOUT ROWID;

-- name: arrive
-- Reserves numbers of arrival and returns the first one.
UPDATE arrivals SET next = next + :count RETURNING next - :count;

-- name: existing
-- A feed that was last read before :alive_ms has expired.
SELECT number, epoch, floor FROM feed WHERE name = ANY (:feeds) AND epoch IS NOT NULL AND read_ms >= :alive_ms;

-- name: add_feeds
INSERT INTO feed (name, read_ms) SELECT value, :now_ms FROM json_each(:feeds) WHERE true ON CONFLICT DO NOTHING;

-- name: numbers
SELECT number, epoch IS NOT NULL AND read_ms >= :alive_ms FROM feed WHERE name = ANY (:feeds);

-- name: feed
SELECT number, read_ms, epoch, dropped, floor FROM feed WHERE name = :name;

-- name: feed_of_number
SELECT number, epoch, dropped, floor FROM feed WHERE number = :feed;

-- name: add
-- A repeated record changes nothing; of two with the same time the greater metadata win.
INSERT INTO record (feed, id, time, kind, arrival, metadata) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (feed, id, time, kind) DO UPDATE SET metadata = excluded.metadata
WHERE record.metadata IS NULL OR excluded.metadata > record.metadata;

-- name: first_trimmed
-- The newest id that is not among the newest :cap ids; deleted and unmerged ids count.
SELECT id FROM record WHERE feed = :feed AND time >= :epoch GROUP BY id ORDER BY id DESC LIMIT 1 OFFSET :cap;

-- name: raise_floor
UPDATE feed SET floor = :floor WHERE number = :feed;

-- name: trim
DELETE FROM record WHERE feed = :feed AND id <= :floor AND kind <> 4;

-- name: records
SELECT kind, id, time, metadata FROM record WHERE feed = :feed ORDER BY arrival, kind;

-- name: remove_records
DELETE FROM record WHERE feed = :feed;

-- name: change_feed
UPDATE feed SET epoch = :epoch, dropped = :dropped, floor = :floor WHERE number = :feed;

-- name: remove_feed
DELETE FROM feed WHERE number = :feed;

-- name: newest
-- The first :most records by falling ids; one row without a record if there are none.
SELECT f.number, f.epoch, f.floor, f.read_ms, r.kind, r.id, r.time, r.metadata
FROM feed f LEFT JOIN record r ON r.feed = f.number
WHERE f.name = :name AND f.epoch IS NOT NULL AND f.read_ms >= :alive_ms ORDER BY r.id DESC LIMIT :most;

-- name: all_records
SELECT f.number, f.epoch, f.floor, f.read_ms, r.kind, r.id, r.time, r.metadata
FROM feed f LEFT JOIN record r ON r.feed = f.number
WHERE f.name = :name AND f.epoch IS NOT NULL AND f.read_ms >= :alive_ms ORDER BY r.arrival, r.kind;

-- name: renew
UPDATE feed SET read_ms = :now_ms WHERE number = ANY (:feeds) AND read_ms < :now_ms;

-- name: unread
SELECT number FROM feed WHERE epoch IS NOT NULL AND read_ms < :before_ms LIMIT :limit;

-- name: with_old_tombstones
SELECT DISTINCT feed FROM record WHERE kind = 4 AND time < :before LIMIT :limit;

-- name: with_old_drops
SELECT number FROM feed WHERE dropped < :before LIMIT :limit;

-- name: save_position
INSERT INTO position (source, partition, cursor_order, cursor_offset)
VALUES (:source, :partition, :cursor_order, :cursor_offset)
ON CONFLICT (source, partition)
DO UPDATE SET cursor_order = excluded.cursor_order, cursor_offset = excluded.cursor_offset;

-- name: positions
SELECT partition, cursor_order, cursor_offset FROM position WHERE source = :source;
