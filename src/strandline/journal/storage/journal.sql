-- Replicated journals.
-- A cursor is two columns, the order of its timeline and its offset. A life of a journal is identified by its
-- partition and `since`, the cursor of the action that created it. Rows of a purged life are never mixed with those
-- of the next one.

-- name: create
CREATE TABLE journal_topic (
    number  BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id      TEXT COLLATE "C" NOT NULL UNIQUE
);
-- The cursor up to which everything is replicated; NULL only inside the transaction of the first batch.
CREATE TABLE pointer (
    topic          BIGINT NOT NULL,
    partition      INTEGER NOT NULL,
    cursor_order   INTEGER,
    cursor_offset  BIGINT,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE metajournal (
    topic            BIGINT NOT NULL,
    id               TEXT COLLATE "C" NOT NULL,
    partition        INTEGER NOT NULL,
    since_order      INTEGER NOT NULL,
    since_offset     BIGINT NOT NULL,
    cursor_order     INTEGER NOT NULL,
    cursor_offset    BIGINT NOT NULL,
    seq_nr           BIGINT NOT NULL,
    delete_to        BIGINT,
    created_ms       BIGINT NOT NULL,
    updated_ms       BIGINT NOT NULL,
    expire_after_ms  BIGINT,
    expire_on_ms     BIGINT,
    origin           TEXT,
    PRIMARY KEY (topic, id)
) WITHOUT ROWID;
CREATE INDEX expiring_journals ON metajournal (topic, expire_on_ms) WHERE expire_on_ms IS NOT NULL;
-- `payload_kind` is 0 without a payload, else 1 JSON, 2 text, 3 binary. `tags` and `headers` are JSON, NULL if there
-- are none; the values of headers are in base64.
CREATE TABLE journal (
    topic          BIGINT NOT NULL,
    partition      INTEGER NOT NULL,
    since_order    INTEGER NOT NULL,
    since_offset   BIGINT NOT NULL,
    seq_nr         BIGINT NOT NULL,
    cursor_order   INTEGER NOT NULL,
    cursor_offset  BIGINT NOT NULL,
    timestamp_ms   BIGINT NOT NULL,
    payload_kind   INTEGER NOT NULL,
    payload        BYTEA,
    tags           TEXT,
    metadata       BYTEA,
    append_id      TEXT,
    origin         TEXT,
    headers        TEXT,
    PRIMARY KEY (topic, partition, since_order, since_offset, seq_nr)
) WITHOUT ROWID;
CREATE TABLE snapshot (
    topic         BIGINT NOT NULL,
    id            TEXT COLLATE "C" NOT NULL,
    since_order   INTEGER NOT NULL,
    since_offset  BIGINT NOT NULL,
    seq_nr        BIGINT NOT NULL,
    payload_kind  INTEGER NOT NULL,
    payload       BYTEA,
    PRIMARY KEY (topic, id, since_order, since_offset, seq_nr)
) WITHOUT ROWID;
-- Records that could not be decoded.
CREATE TABLE dead_letter (
    topic          BIGINT NOT NULL,
    partition      INTEGER NOT NULL,
    cursor_order   INTEGER NOT NULL,
    cursor_offset  BIGINT NOT NULL,
    timestamp_ms   BIGINT NOT NULL,
    reason         TEXT NOT NULL,
    key            BYTEA,
    value          BYTEA,
    headers        TEXT NOT NULL,
    PRIMARY KEY (topic, partition, cursor_order, cursor_offset)
) WITHOUT ROWID;

-- part: head
h.since_order, h.since_offset, h.cursor_order, h.cursor_offset, h.seq_nr, h.delete_to,
h.created_ms, h.updated_ms, h.expire_after_ms, h.expire_on_ms, h.origin

-- part: event
j.seq_nr, j.payload_kind, j.payload, j.tags, j.timestamp_ms, j.metadata,
j.cursor_order, j.cursor_offset, j.append_id, j.origin, j.headers

-- part: of_head
j.topic = h.topic AND j.partition = h.partition
AND j.since_order = h.since_order AND j.since_offset = h.since_offset

-- part: key_order
j.topic, j.partition, j.since_order, j.since_offset, j.seq_nr

-- part: topic
(SELECT number FROM journal_topic WHERE id = :topic)

-- name: topic
SELECT number FROM journal_topic WHERE id = :topic;

-- name: topics
SELECT id FROM journal_topic ORDER BY id;

-- name: add_topic
INSERT INTO journal_topic (id) VALUES (:topic) ON CONFLICT (id) DO NOTHING;

-- name: pointers
SELECT partition, cursor_order, cursor_offset FROM pointer WHERE topic = {topic};

-- name: open (sqlite)
-- The pointer, the head and the first rows. Nothing if the topic is not known; one row without an event if there are
-- no events. The tables are read in the order of the joins, each by its key, so the rows need no sorting.
SELECT p.cursor_order, p.cursor_offset, {head}, {event}
FROM journal_topic AS t
LEFT JOIN pointer AS p ON p.topic = t.number AND p.partition = :partition
LEFT JOIN metajournal AS h ON h.topic = t.number AND h.id = :id
LEFT JOIN journal AS j ON {of_head} AND j.seq_nr > coalesce(h.delete_to, 0) AND j.seq_nr >= :first AND :limit > 0
WHERE t.id = :topic
ORDER BY j.seq_nr LIMIT max(:limit, 1);

-- name: open (postgres)
-- The inner limit lets the server read rows in the order of the key; otherwise it sorts the whole journal first.
SELECT p.cursor_order, p.cursor_offset, {head}, j.*
FROM journal_topic AS t
LEFT JOIN pointer AS p ON p.topic = t.number AND p.partition = :partition
LEFT JOIN metajournal AS h ON h.topic = t.number AND h.id = :id
LEFT JOIN LATERAL (
    SELECT {event} FROM journal AS j
    WHERE {of_head} AND j.seq_nr > coalesce(h.delete_to, 0) AND j.seq_nr >= :first
    ORDER BY {key_order} LIMIT :limit
) AS j ON TRUE
WHERE t.id = :topic
ORDER BY j.seq_nr;

-- name: rows
SELECT {event} FROM journal AS j
WHERE j.topic = {topic} AND j.partition = :partition
    AND j.since_order = :since_order AND j.since_offset = :since_offset
    AND j.seq_nr > :after AND j.seq_nr <= :last
ORDER BY {key_order} LIMIT :limit;

-- name: event
SELECT {event} FROM metajournal AS h JOIN journal AS j ON {of_head}
WHERE h.topic = {topic} AND h.id = :id AND j.seq_nr = :seq_nr AND j.seq_nr > coalesce(h.delete_to, 0);

-- name: lock
-- Locks the row of the partition until the transaction ends, and returns the replicated cursor.
INSERT INTO pointer (topic, partition) VALUES (:number, :partition)
ON CONFLICT (topic, partition) DO UPDATE SET partition = excluded.partition
RETURNING cursor_order, cursor_offset;

-- name: move
UPDATE pointer SET cursor_order = :cursor_order, cursor_offset = :cursor_offset
WHERE topic = :number AND partition = :partition;

-- name: heads
SELECT h.id, {head} FROM metajournal AS h WHERE h.topic = :number AND h.id = ANY (:ids);

-- name: put_heads (sqlite)
INSERT INTO metajournal (topic, partition, id, since_order, since_offset, cursor_order, cursor_offset, seq_nr,
    delete_to, created_ms, updated_ms, expire_after_ms, expire_on_ms, origin)
VALUES (:number, :partition, :ids, :since_orders, :since_offsets, :cursor_orders, :cursor_offsets, :seq_nrs,
    :delete_tos, :created_ms, :updated_ms, :expire_after_ms, :expire_on_ms, :origins)
{changed_head};

-- name: put_heads (postgres)
INSERT INTO metajournal (topic, partition, id, since_order, since_offset, cursor_order, cursor_offset, seq_nr,
    delete_to, created_ms, updated_ms, expire_after_ms, expire_on_ms, origin)
SELECT :number, :partition, n.* FROM unnest(
    :ids::text[], :since_orders::integer[], :since_offsets::bigint[], :cursor_orders::integer[],
    :cursor_offsets::bigint[], :seq_nrs::bigint[], :delete_tos::bigint[], :created_ms::bigint[],
    :updated_ms::bigint[], :expire_after_ms::bigint[], :expire_on_ms::bigint[], :origins::text[]
) AS n
{changed_head};

-- part: changed_head
ON CONFLICT (topic, id) DO UPDATE SET
    partition = excluded.partition, since_order = excluded.since_order, since_offset = excluded.since_offset,
    cursor_order = excluded.cursor_order, cursor_offset = excluded.cursor_offset, seq_nr = excluded.seq_nr,
    delete_to = excluded.delete_to, created_ms = excluded.created_ms, updated_ms = excluded.updated_ms,
    expire_after_ms = excluded.expire_after_ms, expire_on_ms = excluded.expire_on_ms, origin = excluded.origin

-- name: remove_heads
DELETE FROM metajournal WHERE topic = :number AND id = ANY (:ids);

-- name: add_rows (sqlite)
INSERT INTO journal (topic, partition, since_order, since_offset, seq_nr, cursor_order, cursor_offset,
    timestamp_ms, payload_kind, payload, tags, metadata, append_id, origin, headers)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_rows (postgres)
COPY journal (topic, partition, since_order, since_offset, seq_nr, cursor_order, cursor_offset,
    timestamp_ms, payload_kind, payload, tags, metadata, append_id, origin, headers)
FROM STDIN (FORMAT BINARY);

-- name: remove_rows (sqlite)
DELETE FROM journal
WHERE topic = :number AND partition = :partition AND since_order = :since_orders AND since_offset = :since_offsets
    AND seq_nr > :afters AND seq_nr <= :lasts;

-- name: remove_rows (postgres)
-- The rows of each span are found through the key. As a join, the planner may read all rows of the partition and
-- compare each of them with each span. `OFFSET 0` keeps it from turning the subquery into a join.
DELETE FROM journal WHERE ctid = ANY (ARRAY(
    SELECT found.row
    FROM unnest(:since_orders::integer[], :since_offsets::bigint[], :afters::bigint[], :lasts::bigint[])
        AS gone (since_order, since_offset, after, last),
    LATERAL (
        SELECT j.ctid AS row FROM journal AS j
        WHERE j.topic = :number AND j.partition = :partition
            AND j.since_order = gone.since_order AND j.since_offset = gone.since_offset
            AND j.seq_nr > gone.after AND j.seq_nr <= gone.last
        OFFSET 0
    ) AS found
));

-- name: nth_row
-- The last seqNr of the first rows of a life; NULL if there are none.
SELECT max(seq_nr) FROM (
    SELECT j.seq_nr FROM journal AS j
    WHERE j.topic = :number AND j.partition = :partition
        AND j.since_order = :since_order AND j.since_offset = :since_offset
        AND j.seq_nr > :after AND j.seq_nr <= :last
    ORDER BY {key_order} LIMIT :limit
) AS found;

-- name: remove_snapshots (sqlite)
DELETE FROM snapshot
WHERE topic = :number AND id = :ids AND (since_order, since_offset) < (:before_orders, :before_offsets);

-- name: remove_snapshots (postgres)
-- Through the key, for the same reason as in `remove_rows`.
DELETE FROM snapshot WHERE ctid = ANY (ARRAY(
    SELECT found.row
    FROM unnest(:ids::text[], :before_orders::integer[], :before_offsets::bigint[])
        AS gone (id, before_order, before_offset),
    LATERAL (
        SELECT s.ctid AS row FROM snapshot AS s
        WHERE s.topic = :number AND s.id = gone.id
            AND (s.since_order, s.since_offset) < (gone.before_order, gone.before_offset)
        OFFSET 0
    ) AS found
));

-- name: add_dead_letter
INSERT INTO dead_letter (topic, partition, cursor_order, cursor_offset, timestamp_ms, reason, key, value, headers)
VALUES (:number, :partition, :cursor_order, :cursor_offset, :timestamp_ms, :reason, :key, :value, :headers);

-- name: dead_letters
SELECT partition, cursor_order, cursor_offset, timestamp_ms, reason, CASE WHEN :whole THEN key END,
    CASE WHEN :whole THEN value END, CASE WHEN :whole THEN headers ELSE '[]' END
FROM dead_letter
WHERE topic = {topic} AND (partition, cursor_order, cursor_offset) > (:partition, :cursor_order, :cursor_offset)
ORDER BY topic, partition, cursor_order, cursor_offset LIMIT :limit;

-- name: save_snapshot
INSERT INTO snapshot (topic, id, since_order, since_offset, seq_nr, payload_kind, payload)
VALUES (:number, :id, :since_order, :since_offset, :seq_nr, :payload_kind, :payload)
ON CONFLICT (topic, id, since_order, since_offset, seq_nr) DO UPDATE SET
    payload_kind = excluded.payload_kind, payload = excluded.payload;

-- name: snapshot
SELECT seq_nr, payload_kind, payload FROM snapshot
WHERE topic = {topic} AND id = :id AND since_order = :since_order AND since_offset = :since_offset
    AND seq_nr <= :at_most
ORDER BY topic DESC, id DESC, since_order DESC, since_offset DESC, seq_nr DESC LIMIT 1;

-- name: delete_snapshot
DELETE FROM snapshot
WHERE topic = {topic} AND id = :id AND since_order = :since_order AND since_offset = :since_offset
    AND seq_nr = :seq_nr;

-- name: expired
SELECT id, cursor_order, cursor_offset FROM metajournal
WHERE topic = {topic} AND expire_on_ms IS NOT NULL AND expire_on_ms <= :now_ms
ORDER BY topic, expire_on_ms LIMIT :limit;

-- name: forget_pointers
-- Before the rows: a replicator that still runs is then refused.
DELETE FROM pointer WHERE topic = {topic};

-- name: forget_rows
-- A limited number, because all rows of a large topic would take longer than a statement may.
DELETE FROM journal WHERE topic = {topic} AND (partition, since_order, since_offset, seq_nr) IN (
    SELECT partition, since_order, since_offset, seq_nr FROM journal WHERE topic = {topic} LIMIT :limit
) RETURNING 1;

-- name: forget_heads
DELETE FROM metajournal WHERE topic = {topic} AND id IN (
    SELECT id FROM metajournal WHERE topic = {topic} LIMIT :limit
) RETURNING 1;

-- name: forget_snapshots
DELETE FROM snapshot WHERE topic = {topic} AND (id, since_order, since_offset, seq_nr) IN (
    SELECT id, since_order, since_offset, seq_nr FROM snapshot WHERE topic = {topic} LIMIT :limit
) RETURNING 1;

-- name: forget_dead_letters
DELETE FROM dead_letter WHERE topic = {topic} AND (partition, cursor_order, cursor_offset) IN (
    SELECT partition, cursor_order, cursor_offset FROM dead_letter WHERE topic = {topic} LIMIT :limit
) RETURNING 1;

-- name: forget_topic
DELETE FROM journal_topic WHERE id = :topic;
