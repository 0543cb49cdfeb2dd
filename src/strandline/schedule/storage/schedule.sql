-- Schedules and their messages. Statements that change messages check all preconditions themselves.
-- `lane` is a part of a schedule (16 on PostgreSQL, 1 on SQLite), so that an engine can spread the tables.
-- The current time is `now_ms` of `clock`: the same value for all rows of a statement.

-- part: clock
clock AS MATERIALIZED (
    SELECT coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) + :offset_ms AS now_ms
)

-- part: given (sqlite)
-- The items of an operation.
given AS MATERIALIZED (
    SELECT value ->> 0 AS id, value ->> 1 AS lane, value ->> 2 AS actor, value ->> 3 AS version,
        value ->> 4 AS moment, value ->> 5 AS delay, value ->> 6 AS epoch
    FROM json_each(:items)
)

-- part: given (postgres)
given AS MATERIALIZED (
    SELECT * FROM unnest(:ids::text[], :lanes::integer[], :actors::text[], :versions::bigint[], :moments::bigint[],
        :delays::bigint[], :epochs::bigint[]) AS g (id, lane, actor, version, moment, delay, epoch)
)

-- part: new (sqlite)
new AS MATERIALIZED (
    SELECT value ->> 0 AS id, value ->> 1 AS lane, value ->> 2 AS actor, value ->> 3 AS moment, value ->> 4 AS delay,
        value ->> 5 AS hash, value ->> 6 AS body_bytes, value ->> 7 AS body_hash
    FROM json_each(:items)
)

-- part: new (postgres)
new AS MATERIALIZED (
    SELECT * FROM unnest(:ids::text[], :lanes::integer[], :actors::text[], :moments::bigint[], :delays::bigint[],
        :hashes::bigint[], :body_bytes::integer[], :body_hashes::text[])
        AS g (id, lane, actor, moment, delay, hash, body_bytes, body_hash)
)

-- part: asked
-- The items with the time, their new moment, and the settings of the schedule.
{clock}, {given}, asked AS {as_written} (
    SELECT g.*, c.now_ms, s.number, s.max_future_ms, s.max_lease_ms, coalesce(s.max_attempts, 2147483647) AS attempts,
        coalesce(g.moment, CASE WHEN c.now_ms + g.delay > 0 THEN c.now_ms + g.delay ELSE 0 END) AS new_ms
    FROM given g, clock c, schedules s WHERE s.name = :schedule
)

-- part: new_version
-- Versions and epochs that are counted from here are larger than those before, also after a deletion.
CASE WHEN c.now_ms / 1000 * 1048576 > s.first_version THEN c.now_ms / 1000 * 1048576 ELSE s.first_version END

-- part: as_written (sqlite)

-- part: as_written (postgres)
-- Otherwise the server may begin with the messages of the schedule.
MATERIALIZED

-- part: is_asked
messages.schedule = g.number AND messages.lane = g.lane AND messages.id = g.id

-- part: live
-- The sum makes the partial indexes unusable.
messages.mark + 0 = 0

-- part: message
messages.id, messages.bucket, messages.at_ms, messages.due_ms, messages.producer_group, messages.consumer,
    messages.version, messages.delivery_count, messages.created_ms

-- part: changed
{message}, messages.mark, messages.left_ms, messages.schedule, messages.lane

-- part: body
(SELECT b.is_json FROM message_bodies b WHERE b.schedule = messages.schedule AND b.lane = messages.lane
    AND b.producer_group = messages.producer_group AND b.id = messages.id) AS is_json,
(SELECT b.body FROM message_bodies b WHERE b.schedule = messages.schedule AND b.lane = messages.lane
    AND b.producer_group = messages.producer_group AND b.id = messages.id) AS body

-- part: with_body (sqlite)
, {body}

-- part: with_body (postgres)
-- `delivered` reads it once, not once for each column.

-- part: delivered (sqlite)

-- part: delivered (postgres)
{moved}
SELECT changed.*, b.is_json, b.body FROM changed LEFT JOIN message_bodies b
    ON b.schedule = changed.schedule AND b.lane = changed.lane AND b.producer_group = changed.producer_group
        AND b.id = changed.id;

-- part: atomically (sqlite)
-- The caller counts what has changed, in the same transaction.

-- part: atomically (postgres)
-- What has changed is counted in the same statement. Rows of counts would be locked by every writer, so changes
-- are appended as parts of a slot; `fold` adds them to part 0.
WITH changed AS (

-- part: counted (sqlite)

-- part: counted (postgres)
{moved}
SELECT * FROM changed;

-- part: moved (postgres)
), counted AS (
    INSERT INTO schedule_slots (schedule, size_ms, start_ms, part, count)
    SELECT schedule, 60000, start_ms, 1 + floor(random() * 4611686018427387904)::bigint, sum(change)
    FROM (
        SELECT schedule, left_ms - left_ms % 60000 AS start_ms, -1 AS change FROM changed WHERE left_ms IS NOT NULL
        UNION ALL
        SELECT schedule, at_ms - at_ms % 60000, 1 FROM changed WHERE consumer IS NULL AND mark = 0
    ) AS moves
    GROUP BY schedule, start_ms HAVING sum(change) <> 0
)


-- The planner of SQLite has no statistics, and prefers the primary key.

-- part: by_holder (sqlite)
INDEXED BY messages_held

-- part: by_holder (postgres)

-- part: by_death (sqlite)
INDEXED BY messages_dead

-- part: by_death (postgres)

-- part: by_news (sqlite)
INDEXED BY schedule_slots_new

-- part: by_news (postgres)

-- part: in_each_lane (sqlite)
FROM (

-- part: in_each_lane (postgres)
FROM generate_series(0, 15) AS l (lane) CROSS JOIN LATERAL (

-- part: lane (sqlite)
0

-- part: lane (postgres)
l.lane

-- name: create
-- A schedule without a name is deleted; `purge` removes its rows. The versions of its messages begin at `first_version`
-- or later, so that a schedule that is created again in the same second repeats no version of the deleted one.
CREATE TABLE schedules (
    number          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            TEXT COLLATE "C" UNIQUE,
    buckets         INTEGER NOT NULL,
    max_future_ms   BIGINT NOT NULL,
    max_lease_ms    BIGINT NOT NULL,
    max_body_bytes  INTEGER NOT NULL,
    dedupe_ms       BIGINT NOT NULL,
    max_attempts    INTEGER,
    first_version   BIGINT NOT NULL,
    deleted_name    TEXT COLLATE "C",
    deleted_ms      BIGINT
);
CREATE INDEX schedules_deleted ON schedules (deleted_name) WHERE deleted_name IS NOT NULL;
-- `mark`: 0 live, 1 dead, 2 deleted (then `at_ms` is the time of the deletion and `consumer` the deleter, or NULL
-- for the owner). `left_ms`: the moment at which the message was counted before its last change, or NULL.
CREATE TABLE messages (
    schedule        BIGINT NOT NULL,
    lane            INTEGER NOT NULL,
    bucket          INTEGER NOT NULL,
    at_ms           BIGINT NOT NULL,
    due_ms          BIGINT NOT NULL,
    created_ms      BIGINT NOT NULL,
    version         BIGINT NOT NULL,
    left_ms         BIGINT,
    delivery_count  INTEGER NOT NULL,
    mark            INTEGER NOT NULL,
    body_bytes      INTEGER NOT NULL,
    id              TEXT COLLATE "C" NOT NULL,
    producer_group  TEXT NOT NULL,
    consumer        TEXT COLLATE "C",
    body_hash       TEXT NOT NULL,
    PRIMARY KEY (schedule, lane, id)
) WITHOUT ROWID;
-- The indexes are partial so that an operation, which does not name the mark in this form, can only use the key.
-- Without statistics a server takes any index for it, and keeps that plan while the table grows.
CREATE INDEX messages_due ON messages (schedule, lane, at_ms) WHERE mark = 0;
CREATE INDEX messages_deleted ON messages (schedule, lane, at_ms) WHERE mark = 2;
CREATE INDEX messages_held ON messages (schedule, lane, consumer, id) WHERE consumer IS NOT NULL AND mark = 0;
CREATE INDEX messages_dead ON messages (schedule, lane, id) WHERE mark = 1;
-- The group is here because these rows never change: an index on `messages` would be written with every lease.
CREATE TABLE message_bodies (
    schedule        BIGINT NOT NULL,
    lane            INTEGER NOT NULL,
    id              TEXT COLLATE "C" NOT NULL,
    producer_group  TEXT COLLATE "C" NOT NULL,
    is_json         BOOLEAN NOT NULL,
    body            BYTEA NOT NULL,
    PRIMARY KEY (schedule, lane, id)
) WITHOUT ROWID;
CREATE INDEX message_bodies_of ON message_bodies (schedule, lane, producer_group, id);
-- How many live messages without a holder have their moment in a minute or an hour: the sum of all parts. Parts
-- other than 0 are only of minutes, and not yet added to part 0 of the minute and of the hour.
CREATE TABLE schedule_slots (
    schedule  BIGINT NOT NULL,
    size_ms   BIGINT NOT NULL,
    start_ms  BIGINT NOT NULL,
    part      BIGINT NOT NULL,
    count     BIGINT NOT NULL,
    PRIMARY KEY (schedule, size_ms, start_ms, part)
) WITHOUT ROWID;
CREATE INDEX schedule_slots_new ON schedule_slots (schedule, start_ms) WHERE part > 0;
-- How far the clock of a node was ahead of the database's when it was measured, and the largest possible error.
CREATE TABLE schedule_nodes (
    node          TEXT PRIMARY KEY,
    expires_ms    BIGINT NOT NULL,
    clock_offset  DOUBLE PRECISION NOT NULL,
    clock_error   DOUBLE PRECISION NOT NULL,
    measured_ms   BIGINT NOT NULL
) WITHOUT ROWID;
-- A consumer is there while its node is, or until `until_ms`.
CREATE TABLE schedule_consumers (
    schedule  BIGINT NOT NULL,
    consumer  TEXT COLLATE "C" NOT NULL,
    epoch     BIGINT NOT NULL,
    node      TEXT,
    until_ms  BIGINT NOT NULL,
    PRIMARY KEY (schedule, consumer)
) WITHOUT ROWID;

-- name: now
WITH {clock} SELECT now_ms FROM clock;

-- name: now_of
WITH {clock} SELECT c.now_ms FROM clock c, schedules s WHERE s.name = :schedule;

-- name: put
INSERT INTO schedules (name, buckets, max_future_ms, max_lease_ms, max_body_bytes, dedupe_ms, max_attempts, first_version)
VALUES (:name, :buckets, :max_future_ms, :max_lease_ms, :max_body_bytes, :dedupe_ms, :max_attempts,
    coalesce((SELECT 1048576 + max(CASE WHEN d.first_version > d.deleted_ms / 1000 * 1048576
        THEN d.first_version ELSE d.deleted_ms / 1000 * 1048576 END) FROM schedules d WHERE d.deleted_name = :name), 0))
ON CONFLICT (name) DO NOTHING RETURNING number;

-- name: change
UPDATE schedules SET max_future_ms = :max_future_ms, max_lease_ms = :max_lease_ms, max_body_bytes = :max_body_bytes,
    dedupe_ms = :dedupe_ms, max_attempts = :max_attempts
WHERE name = :name AND buckets = :buckets
    AND (CAST(:max_attempts AS bigint) IS NULL OR NOT EXISTS (SELECT 1 FROM relays r WHERE r.schedule = schedules.number))
RETURNING number;

-- name: schedule
SELECT name, buckets, max_future_ms, max_lease_ms, max_body_bytes, dedupe_ms, max_attempts
FROM schedules WHERE name = :name;

-- name: schedules
SELECT name, buckets, max_future_ms, max_lease_ms, max_body_bytes, dedupe_ms, max_attempts
FROM schedules WHERE name IS NOT NULL ORDER BY name;

-- name: delete_schedule
WITH {clock}
UPDATE schedules SET name = NULL, deleted_name = name, deleted_ms = (SELECT now_ms FROM clock) WHERE name = :name RETURNING number;

-- name: add
-- A tombstone older than the dedupe window is replaced. The version of an id only grows.
{atomically}
WITH {clock}, {new}, placed AS (
    SELECT g.*, c.now_ms, s.number, s.buckets, s.max_future_ms, s.max_body_bytes, {new_version} AS version,
        coalesce(g.moment, CASE WHEN c.now_ms + g.delay > 0 THEN c.now_ms + g.delay ELSE 0 END) AS new_ms
    FROM new g, clock c, schedules s WHERE s.name = :schedule
)
INSERT INTO messages (schedule, lane, bucket, at_ms, due_ms, created_ms, version, left_ms, delivery_count, mark,
    body_bytes, id, producer_group, consumer, body_hash)
SELECT g.number, g.lane, g.hash % g.buckets, g.new_ms, g.new_ms, g.now_ms, g.version, NULL, 0, 0,
    g.body_bytes, g.id, g.actor, NULL, g.body_hash
FROM placed g WHERE g.new_ms <= g.now_ms + g.max_future_ms AND g.body_bytes <= g.max_body_bytes
ON CONFLICT (schedule, lane, id) DO UPDATE SET at_ms = excluded.at_ms, due_ms = excluded.due_ms,
    created_ms = excluded.created_ms, left_ms = NULL, delivery_count = 0, mark = 0, body_bytes = excluded.body_bytes,
    producer_group = excluded.producer_group, consumer = NULL, body_hash = excluded.body_hash,
    version = CASE WHEN excluded.version > messages.version THEN excluded.version ELSE messages.version + 1 END
WHERE messages.mark = 2 AND messages.at_ms <= excluded.created_ms
    - (SELECT s.dedupe_ms FROM schedules s WHERE s.number = excluded.schedule)
RETURNING {changed}
{added}

-- part: added (sqlite)

-- part: added (postgres)
), stored AS (
    INSERT INTO message_bodies (schedule, lane, id, producer_group, is_json, body)
    SELECT schedule, lane, id, producer_group, (:jsons::boolean[])[place], (:bodies::bytea[])[place]
    FROM (SELECT *, array_position(:ids::text[], id) AS place FROM changed OFFSET 0) AS placed
    ON CONFLICT (schedule, lane, id) DO UPDATE SET producer_group = excluded.producer_group,
        is_json = excluded.is_json, body = excluded.body
{counted}

-- name: lease
-- A message that was delivered `max_attempts` times becomes dead instead. A session whose epoch was raised gets
-- nothing, and a new session waits for this statement.
{atomically}
WITH {asked}, fence AS MATERIALIZED (
    SELECT f.consumer, f.epoch FROM schedule_consumers f
    WHERE f.schedule = (SELECT number FROM schedules WHERE name = :schedule)
        AND f.consumer IN (SELECT actor FROM given WHERE epoch IS NOT NULL)
    ORDER BY f.consumer FOR SHARE OF f
)
UPDATE messages SET version = messages.version + 1,
    left_ms = CASE WHEN messages.consumer IS NULL THEN messages.at_ms END,
    mark = CASE WHEN messages.delivery_count < g.attempts THEN 0 ELSE 1 END,
    at_ms = CASE WHEN messages.delivery_count < g.attempts
        THEN g.new_ms ELSE messages.at_ms END,
    consumer = CASE WHEN messages.delivery_count < g.attempts
        THEN g.actor ELSE messages.consumer END,
    delivery_count = messages.delivery_count
        + CASE WHEN messages.delivery_count < g.attempts THEN 1 ELSE 0 END
FROM asked g
WHERE {is_asked} AND {live} AND messages.at_ms <= g.now_ms
    AND (g.version IS NULL OR messages.version = g.version)
    AND g.new_ms > g.now_ms + 5 AND g.new_ms <= g.now_ms + g.max_lease_ms
    AND (g.epoch IS NULL OR EXISTS (SELECT 1 FROM fence f WHERE f.consumer = g.actor AND f.epoch = g.epoch))
RETURNING {changed}{with_body}
{delivered}

-- name: hand_back
{atomically}
WITH {asked}, fence AS MATERIALIZED (
    SELECT f.consumer, f.epoch FROM schedule_consumers f
    WHERE f.schedule = (SELECT number FROM schedules WHERE name = :schedule)
        AND f.consumer IN (SELECT actor FROM given)
    ORDER BY f.consumer FOR SHARE OF f
)
UPDATE messages SET version = messages.version + 1, left_ms = NULL, delivery_count = messages.delivery_count + 1
FROM asked g
WHERE {is_asked} AND {live} AND messages.consumer = g.actor AND messages.at_ms > g.now_ms
    AND messages.version = g.version AND messages.delivery_count < g.attempts
    AND EXISTS (SELECT 1 FROM fence f WHERE f.consumer = g.actor AND f.epoch = g.epoch)
RETURNING {changed}{with_body}
{delivered}

-- name: give_back
-- The version is the proof that no other session has seen the lease.
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, left_ms = NULL, at_ms = messages.due_ms, consumer = NULL,
    delivery_count = messages.delivery_count - 1
FROM asked g
WHERE {is_asked} AND {live} AND messages.consumer = g.actor AND messages.version = g.version
RETURNING {changed}
{counted}

-- name: extend
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, left_ms = NULL, at_ms = g.new_ms
FROM asked g
WHERE {is_asked} AND {live} AND messages.consumer = g.actor AND messages.at_ms > g.now_ms
    AND messages.version = g.version AND g.new_ms > g.now_ms + 5 AND g.new_ms <= g.now_ms + g.max_lease_ms
RETURNING {changed}
{counted}

-- name: release
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, left_ms = NULL, at_ms = g.new_ms, due_ms = g.new_ms, consumer = NULL
FROM asked g
WHERE {is_asked} AND {live} AND messages.consumer = g.actor AND messages.at_ms > g.now_ms
    AND messages.version = g.version AND g.new_ms > g.now_ms + 5 AND g.new_ms <= g.now_ms + g.max_future_ms
RETURNING {changed}
{counted}

-- name: delete_held
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, left_ms = NULL, at_ms = g.now_ms, mark = 2
FROM asked g
WHERE {is_asked} AND {live} AND messages.consumer = g.actor AND messages.at_ms > g.now_ms
    AND messages.version = g.version
RETURNING {changed}
{counted}

-- name: delete_owned
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, at_ms = g.now_ms, mark = 2, consumer = NULL,
    left_ms = CASE WHEN messages.consumer IS NULL THEN messages.at_ms END
FROM asked g
WHERE {is_asked} AND {live} AND messages.producer_group = g.actor
    AND (messages.consumer IS NULL OR messages.at_ms <= g.now_ms)
    AND (g.version IS NULL OR messages.version = g.version)
RETURNING {changed}
{counted}

-- name: delete_relayed
-- For a relay, which has published these messages, whoever created them, and even if another consumer holds their
-- leases by now.
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, at_ms = g.now_ms, mark = 2,
    left_ms = CASE WHEN messages.consumer IS NULL THEN messages.at_ms END
FROM asked g
WHERE {is_asked} AND {live}
RETURNING {changed}
{counted}

-- name: delete_dead
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, left_ms = NULL, at_ms = g.now_ms, mark = 2, consumer = NULL
FROM asked g
WHERE {is_asked} AND messages.mark + 0 = 1 AND messages.producer_group = g.actor
    AND (g.version IS NULL OR messages.version = g.version)
RETURNING {changed}
{counted}

-- name: move
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, at_ms = g.new_ms, due_ms = g.new_ms, consumer = NULL,
    left_ms = CASE WHEN messages.consumer IS NULL THEN messages.at_ms END
FROM asked g
WHERE {is_asked} AND {live} AND messages.producer_group = g.actor
    AND (messages.consumer IS NULL OR messages.at_ms <= g.now_ms)
    AND (g.version IS NULL OR messages.version = g.version) AND g.new_ms <= g.now_ms + g.max_future_ms
RETURNING {changed}
{counted}

-- name: put_back
{atomically}
WITH {asked}
UPDATE messages SET version = messages.version + 1, left_ms = NULL, at_ms = g.now_ms, due_ms = g.now_ms, mark = 0,
    consumer = NULL, delivery_count = 0
FROM asked g
WHERE {is_asked} AND messages.mark + 0 = 1 AND messages.producer_group = g.actor
    AND (g.version IS NULL OR messages.version = g.version)
RETURNING {changed}
{counted}

-- name: look
-- A row for each given id, with the settings and the time; no rows if there is no such schedule.
WITH {clock}, {given}
SELECT g.id, c.now_ms, s.name, s.buckets, s.max_future_ms, s.max_lease_ms, s.max_body_bytes, s.dedupe_ms,
    s.max_attempts, {message}, messages.mark, messages.body_hash
FROM given g CROSS JOIN clock c JOIN schedules s ON s.name = :schedule
LEFT JOIN messages ON messages.schedule = s.number AND messages.lane = g.lane AND messages.id = g.id;

-- name: read
WITH {clock}
SELECT c.now_ms, messages.mark, {message}, b.is_json, b.body
FROM clock c, schedules s, messages, message_bodies b
WHERE s.name = :schedule AND messages.schedule = s.number AND messages.lane = :lane AND messages.id = :id
    AND b.schedule = messages.schedule AND b.lane = messages.lane AND b.id = messages.id;

-- name: list_live
WITH {clock}, s AS MATERIALIZED (SELECT number FROM schedules WHERE name = :schedule)
SELECT found.* {in_each_lane}
    SELECT {message} FROM messages, clock
    WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = {lane} AND messages.id > :after
        AND messages.mark = 0 AND {in_state}
    ORDER BY messages.id LIMIT :limit
) AS found ORDER BY found.id LIMIT :limit;

-- part: in_state
(:state = '' OR :state = CASE WHEN messages.at_ms <= clock.now_ms THEN 'available'
    WHEN messages.consumer IS NULL THEN 'waiting' ELSE 'processing' END)

-- name: list_held
WITH {clock}, s AS MATERIALIZED (SELECT number FROM schedules WHERE name = :schedule)
SELECT found.* {in_each_lane}
    SELECT {message} FROM messages {by_holder}, clock
    WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = {lane} AND messages.consumer = :consumer
        AND messages.id > :after AND messages.mark = 0 AND {in_state}
    ORDER BY messages.id LIMIT :limit
) AS found ORDER BY found.id LIMIT :limit;

-- name: list_owned
WITH {clock}, s AS MATERIALIZED (SELECT number FROM schedules WHERE name = :schedule)
SELECT found.* {in_each_lane}
    SELECT {message} FROM message_bodies b, messages, clock
    WHERE b.schedule = (SELECT number FROM s) AND b.lane = {lane} AND b.producer_group = :producer_group
        AND b.id > :after AND messages.schedule = b.schedule AND messages.lane = b.lane AND messages.id = b.id
        AND messages.mark = :mark AND {in_state}
    ORDER BY b.id LIMIT :limit
) AS found ORDER BY found.id LIMIT :limit;

-- name: list_dead
-- `consumer` is the last holder.
WITH {clock}, s AS MATERIALIZED (SELECT number FROM schedules WHERE name = :schedule)
SELECT found.* {in_each_lane}
    SELECT {message} FROM messages {by_death}, clock
    WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = {lane} AND messages.id > :after
        AND messages.mark = 1 AND {in_state} AND (:consumer = '' OR messages.consumer = :consumer)
    ORDER BY messages.id LIMIT :limit
) AS found ORDER BY found.id LIMIT :limit;

-- part: ranges (sqlite)
ranges AS MATERIALIZED (SELECT value ->> 0 AS first, value ->> 1 AS last FROM json_each(:ranges))

-- part: ranges (postgres)
ranges AS MATERIALIZED (SELECT * FROM unnest(:firsts::integer[], :lasts::integer[]) AS r (first, last))

-- part: s
s AS MATERIALIZED (SELECT number, buckets, max_lease_ms, max_attempts FROM schedules WHERE name = :schedule)

-- part: due
due AS NOT MATERIALIZED (
    SELECT messages.id, messages.bucket, messages.at_ms, messages.version, messages.body_bytes, messages.lane,
        messages.delivery_count >= coalesce((SELECT max_attempts FROM s), 2147483647) AS exhausted
    FROM messages WHERE messages.schedule = (SELECT number FROM s) AND messages.mark = 0
        AND messages.at_ms <= (SELECT now_ms FROM clock)
)

-- part: may_take
WHERE d.at_ms <= (SELECT now_ms - 5 FROM clock)
    OR EXISTS (SELECT 1 FROM ranges r WHERE d.bucket BETWEEN r.first AND r.last)
ORDER BY d.at_ms
LIMIT (SELECT :beyond + CASE
        WHEN sum(r.last - r.first + 1) >= (SELECT buckets FROM s) THEN :credit ELSE :credit * 4 END
    FROM ranges r)

-- name: due (sqlite)
-- If other nodes have some of the buckets, more are read than can be taken: most of them will be taken there.
WITH {clock}, {s}, {ranges}, {due}
SELECT (SELECT now_ms FROM clock), (SELECT max_lease_ms FROM s), d.id, d.bucket, d.at_ms, d.version, d.body_bytes,
    d.exhausted
FROM (SELECT * FROM due WHERE lane = 0 ORDER BY at_ms) AS d
{may_take};

-- name: due (postgres)
-- Reads the lanes in parallel order, as far as needed: an index scan cannot merge them.
WITH {clock}, {s}, {ranges}, {due}
SELECT (SELECT now_ms FROM clock), (SELECT max_lease_ms FROM s), d.id, d.bucket, d.at_ms, d.version, d.body_bytes,
    d.exhausted
FROM (
    (SELECT * FROM due WHERE lane = 0 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 1 ORDER BY at_ms)
    UNION ALL
    (SELECT * FROM due WHERE lane = 2 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 3 ORDER BY at_ms)
    UNION ALL
    (SELECT * FROM due WHERE lane = 4 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 5 ORDER BY at_ms)
    UNION ALL
    (SELECT * FROM due WHERE lane = 6 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 7 ORDER BY at_ms)
    UNION ALL
    (SELECT * FROM due WHERE lane = 8 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 9 ORDER BY at_ms)
    UNION ALL
    (SELECT * FROM due WHERE lane = 10 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 11 ORDER BY at_ms)
    UNION ALL
    (SELECT * FROM due WHERE lane = 12 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 13 ORDER BY at_ms)
    UNION ALL
    (SELECT * FROM due WHERE lane = 14 ORDER BY at_ms) UNION ALL (SELECT * FROM due WHERE lane = 15 ORDER BY at_ms)
) AS d
{may_take};

-- part: in_order
SELECT messages.id, messages.version, messages.body_bytes, messages.at_ms FROM messages
WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = {lane} AND messages.mark = 0
    AND messages.at_ms <= (SELECT now_ms FROM clock)
ORDER BY messages.at_ms, messages.id LIMIT :limit

-- name: due_in_order
-- The oldest available messages; those of one moment by their ids.
WITH {clock}, {s}
SELECT (SELECT now_ms FROM clock), (SELECT max_lease_ms FROM s), found.id, found.version, found.body_bytes
{in_each_lane}
    {in_order}
) AS found ORDER BY found.at_ms, found.id LIMIT :limit;

-- name: contents
-- The given messages that are live, with their bodies.
WITH {given}
SELECT {changed}, {body}
FROM given g JOIN schedules s ON s.name = :schedule
JOIN messages ON messages.schedule = s.number AND messages.lane = g.lane AND messages.id = g.id AND {live};

-- name: next_due
WITH {clock}, {s}
SELECT (SELECT now_ms FROM clock), min(found.oldest_ms), min(found.next_ms) {in_each_lane}
    SELECT
        (SELECT messages.at_ms FROM messages WHERE messages.schedule = (SELECT number FROM s)
            AND messages.lane = {lane} AND messages.mark = 0 AND messages.at_ms <= (SELECT now_ms FROM clock)
            ORDER BY messages.at_ms LIMIT 1) AS oldest_ms,
        (SELECT messages.at_ms FROM messages WHERE messages.schedule = (SELECT number FROM s)
            AND messages.lane = {lane} AND messages.mark = 0 AND messages.at_ms > (SELECT now_ms FROM clock)
            ORDER BY messages.at_ms LIMIT 1) AS next_ms
) AS found;

-- part: cuts (sqlite)
hours AS MATERIALIZED (SELECT value AS hour_ms FROM json_each(:hours)),
minutes AS MATERIALIZED (SELECT value AS minute_ms FROM json_each(:minutes))

-- part: cuts (postgres)
hours AS MATERIALIZED (SELECT hour_ms FROM unnest(:hours::bigint[]) AS h (hour_ms)),
minutes AS MATERIALIZED (SELECT minute_ms FROM unnest(:minutes::bigint[]) AS m (minute_ms))

-- part: in_hours (sqlite)
SELECT 0, start_ms, sum(count) FROM hours CROSS JOIN schedule_slots
WHERE schedule = (SELECT number FROM s) AND size_ms = 60000
    AND start_ms >= hours.hour_ms AND start_ms < hours.hour_ms + 3600000
    AND +start_ms >= :from_ms AND +start_ms <= :to_ms - 60000 AND start_ms NOT IN (SELECT minute_ms FROM minutes)
GROUP BY start_ms

-- part: in_hours (postgres)
-- Here and below, the groups in the subquery keep the server from reading all slots or messages first.
SELECT 0, found.start_ms, found.count FROM hours CROSS JOIN LATERAL (
    SELECT start_ms, sum(count) AS count FROM schedule_slots
    WHERE schedule = (SELECT number FROM s) AND size_ms = 60000
        AND start_ms >= hours.hour_ms AND start_ms < hours.hour_ms + 3600000
    GROUP BY start_ms
) AS found
WHERE found.start_ms >= :from_ms AND found.start_ms <= :to_ms - 60000
    AND found.start_ms NOT IN (SELECT minute_ms FROM minutes)

-- part: in_minutes (sqlite)
SELECT 0, min(messages.at_ms), count(*) FROM minutes CROSS JOIN messages
WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = 0 AND messages.mark = 0
    AND messages.at_ms >= minutes.minute_ms AND messages.at_ms < minutes.minute_ms + 60000
    AND +messages.at_ms >= :from_ms AND +messages.at_ms < :to_ms AND messages.consumer IS NULL
GROUP BY (messages.at_ms - :from_ms) / :step_ms, messages.at_ms <= :at_ms

-- part: in_minutes (postgres)
-- Minutes without messages are skipped before the lanes are read. OFFSET and LIMIT keep the order of the loops.
SELECT 0, min(found.at_ms), count(*)
FROM (
    SELECT minute_ms FROM minutes WHERE (SELECT z.start_ms FROM schedule_slots z WHERE z.schedule = (SELECT number FROM s)
        AND z.size_ms = 60000 AND z.start_ms = minutes.minute_ms LIMIT 1) IS NOT NULL
    OFFSET 0
) AS filled CROSS JOIN generate_series(0, 15) AS l (lane) CROSS JOIN LATERAL (
    SELECT messages.at_ms FROM messages
    WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = l.lane AND messages.mark = 0
        AND messages.at_ms >= filled.minute_ms AND messages.at_ms < filled.minute_ms + 60000
        AND messages.consumer IS NULL
    OFFSET 0
) AS found
WHERE found.at_ms >= :from_ms AND found.at_ms < :to_ms
GROUP BY (found.at_ms - :from_ms) / :step_ms, found.at_ms <= :at_ms

-- name: counts
-- Messages by moment: (held, a moment in the part of the range, count). Whole hours, except `hours`, in which a part
-- of the range begins; the minutes of those, except `minutes`; and the messages of these. Then the held messages: their
-- order is that of their index, which a server without statistics would not prefer to others.
WITH {s}, {cuts}
SELECT 0, start_ms, sum(count) FROM schedule_slots
WHERE schedule = (SELECT number FROM s) AND size_ms = 3600000 AND part = 0
    AND start_ms >= :from_ms AND start_ms <= :to_ms - 3600000 AND start_ms NOT IN (SELECT hour_ms FROM hours)
GROUP BY start_ms
UNION ALL
SELECT 0, start_ms, sum(count) FROM schedule_slots {by_news}
WHERE schedule = (SELECT number FROM s) AND part > 0
    AND start_ms >= :from_ms AND start_ms <= :to_ms - 60000
    AND start_ms - start_ms % 3600000 NOT IN (SELECT hour_ms FROM hours)
GROUP BY start_ms
UNION ALL
{in_hours}
UNION ALL
{in_minutes}
UNION ALL
SELECT 1, min(found.at_ms), count(*) {in_each_lane}
    SELECT messages.at_ms FROM messages {by_holder}
    WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = {lane} AND messages.mark = 0
        AND messages.consumer IS NOT NULL
        AND +messages.at_ms >= :from_ms AND +messages.at_ms < :to_ms
    ORDER BY messages.consumer, messages.id
) AS found
GROUP BY (found.at_ms - :from_ms) / :step_ms, found.at_ms <= :at_ms;

-- name: counts_dead
WITH {s}
SELECT 0, min(found.at_ms), count(*) {in_each_lane}
    SELECT messages.at_ms FROM messages {by_death}
    WHERE messages.schedule = (SELECT number FROM s) AND messages.lane = {lane} AND messages.mark = 1
        AND messages.at_ms >= :from_ms AND messages.at_ms < :to_ms
) AS found
GROUP BY (found.at_ms - :from_ms) / :step_ms, found.at_ms <= :at_ms;

-- name: fold (sqlite)
-- There are no parts: counts are changed in place.
SELECT 0;

-- name: fold (postgres)
-- A limited number, so that it ends in time after a long outage. Several nodes share the work.
WITH chosen AS MATERIALIZED (
    SELECT schedule, size_ms, start_ms, part FROM schedule_slots WHERE part > 0
    ORDER BY schedule, start_ms LIMIT :limit FOR UPDATE SKIP LOCKED
), changes AS (
    DELETE FROM schedule_slots z USING chosen c
    WHERE z.schedule = c.schedule AND z.size_ms = c.size_ms AND z.start_ms = c.start_ms AND z.part = c.part
    RETURNING z.schedule, z.start_ms, z.count
), folded AS (
    INSERT INTO schedule_slots (schedule, size_ms, start_ms, part, count)
    SELECT c.schedule, z.size_ms, c.start_ms - c.start_ms % z.size_ms, 0, sum(c.count)
    FROM changes c, (VALUES (60000::bigint), (3600000)) AS z (size_ms)
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (schedule, size_ms, start_ms, part) DO UPDATE SET count = schedule_slots.count + excluded.count
)
SELECT count(*) FROM changes;

-- name: kept_schedules
-- All schedules, also deleted ones, with the time before which tombstones are removed.
WITH {clock}
SELECT s.number, s.name IS NULL,
    c.now_ms - CASE WHEN s.dedupe_ms > :shortest_ms THEN s.dedupe_ms ELSE :shortest_ms END,
    c.now_ms, s.deleted_ms
FROM schedules s, clock c ORDER BY s.number;

-- name: tombstones (sqlite)
SELECT lane, id FROM messages WHERE schedule = :number AND lane = 0 AND mark = 2 AND at_ms <= :before_ms
ORDER BY at_ms LIMIT :limit;

-- name: tombstones (postgres)
SELECT found.* FROM generate_series(0, 15) AS l (lane) CROSS JOIN LATERAL (
    SELECT lane, id FROM messages WHERE schedule = :number AND lane = l.lane AND mark = 2 AND at_ms <= :before_ms
    ORDER BY at_ms LIMIT :limit FOR UPDATE SKIP LOCKED
) AS found LIMIT :limit;

-- name: leftovers
SELECT found.* {in_each_lane}
    SELECT lane, id FROM messages WHERE schedule = :number AND lane = {lane} LIMIT :limit
) AS found LIMIT :limit;

-- name: remove_bodies
DELETE FROM message_bodies WHERE schedule = :number AND lane = :lane AND id = ANY (:ids);

-- name: remove_messages
DELETE FROM messages WHERE schedule = :number AND lane = :lane AND id = ANY (:ids);

-- name: remove_slots
DELETE FROM schedule_slots WHERE schedule = :number AND part = 0 AND (:gone OR (count = 0 AND start_ms < :before_ms));

-- name: remove_consumers
DELETE FROM schedule_consumers WHERE schedule = :number AND until_ms < :before_ms
    AND (node IS NULL OR node NOT IN (SELECT node FROM schedule_nodes));

-- name: remove_nodes
DELETE FROM schedule_nodes WHERE expires_ms < :before_ms;

-- name: remove_schedule
DELETE FROM schedules WHERE number = :number AND name IS NULL;

-- name: beat
WITH {clock}
INSERT INTO schedule_nodes (node, expires_ms, clock_offset, clock_error, measured_ms)
SELECT :node, c.now_ms + :lives_ms, :clock_offset, :clock_error, :measured_ms FROM clock c WHERE 0 = 0
ON CONFLICT (node) DO UPDATE SET expires_ms = excluded.expires_ms, clock_offset = excluded.clock_offset,
    clock_error = excluded.clock_error, measured_ms = excluded.measured_ms;

-- name: nodes
WITH {clock}
SELECT node, clock_offset, clock_error, measured_ms FROM schedule_nodes, clock c
WHERE expires_ms > c.now_ms ORDER BY node;

-- name: leave
DELETE FROM schedule_nodes WHERE node = :node;

-- name: open_session
WITH {clock}
INSERT INTO schedule_consumers (schedule, consumer, epoch, node, until_ms)
SELECT s.number, :consumer, {new_version}, :node, c.now_ms FROM clock c, schedules s WHERE s.name = :schedule
ON CONFLICT (schedule, consumer) DO UPDATE SET node = excluded.node, until_ms = excluded.until_ms,
    epoch = CASE WHEN excluded.epoch > schedule_consumers.epoch THEN excluded.epoch
        ELSE schedule_consumers.epoch + 1 END
RETURNING epoch;

-- name: close_session
UPDATE schedule_consumers SET node = NULL
WHERE schedule = (SELECT number FROM schedules WHERE name = :schedule) AND consumer = :consumer AND epoch = :epoch;

-- name: attend
WITH {clock}
INSERT INTO schedule_consumers (schedule, consumer, epoch, node, until_ms)
SELECT s.number, :consumer, {new_version}, NULL, c.now_ms + :lives_ms
FROM clock c, schedules s WHERE s.name = :schedule
ON CONFLICT (schedule, consumer) DO UPDATE SET until_ms = excluded.until_ms
RETURNING epoch;

-- name: present
WITH {clock}
SELECT f.consumer, f.epoch FROM clock c, schedules s JOIN schedule_consumers f ON f.schedule = s.number
LEFT JOIN schedule_nodes n ON n.node = f.node
WHERE s.name = :schedule AND (f.until_ms > c.now_ms OR n.expires_ms > c.now_ms);

-- name: epochs
SELECT f.consumer, f.epoch FROM schedules s JOIN schedule_consumers f ON f.schedule = s.number
WHERE s.name = :schedule AND f.consumer = ANY (:consumers);
