-- A database of the layout before layouts were kept in a table, with rows in every room.

-- Definitions are JSON texts: the catalog compares and hands them on, it does not look inside.
-- Names sort by their bytes, whatever the language of the database is.
CREATE SCHEMA IF NOT EXISTS strandline;
-- One row. Its version is another one after every change; whoever writes anything locks it first.
CREATE TABLE strandline.catalog (
    id       INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    layout   INTEGER NOT NULL,
    version  BIGINT NOT NULL
);
CREATE TABLE strandline.storages (
    id          TEXT COLLATE "C" PRIMARY KEY,
    definition  TEXT NOT NULL,
    is_default  BOOLEAN NOT NULL
);
CREATE TABLE strandline.event_types (
    id          TEXT PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL UNIQUE,
    definition  TEXT NOT NULL
);
CREATE TABLE strandline.schemas (
    event_type_id  TEXT NOT NULL REFERENCES strandline.event_types (id) ON DELETE CASCADE,
    number         INTEGER NOT NULL,
    definition     TEXT NOT NULL,
    PRIMARY KEY (event_type_id, number)
);
-- A removed timeline has no storage; which one it was is in its definition.
CREATE TABLE strandline.timelines (
    id             TEXT PRIMARY KEY,
    event_type_id  TEXT NOT NULL REFERENCES strandline.event_types (id) ON DELETE CASCADE,
    position       INTEGER NOT NULL,
    storage_id     TEXT REFERENCES strandline.storages (id),
    topic          TEXT NOT NULL UNIQUE,
    definition     TEXT NOT NULL,
    UNIQUE (event_type_id, position)
);
-- All switches there ever were; at most one of an event type is not decided.
CREATE TABLE strandline.switches (
    number         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token          TEXT NOT NULL UNIQUE,
    event_type_id  TEXT NOT NULL REFERENCES strandline.event_types (id) ON DELETE CASCADE,
    storage_id     TEXT NOT NULL,
    state          TEXT NOT NULL,
    definition     TEXT NOT NULL
);
CREATE UNIQUE INDEX one_undecided_switch ON strandline.switches (event_type_id)
WHERE state IN ('preparing', 'closing');
CREATE INDEX switches_of_event_type ON strandline.switches (event_type_id, number);
-- Topics that nobody owns (yet, or any more).
CREATE TABLE strandline.doomed_topics (
    storage_id  TEXT NOT NULL,
    topic       TEXT NOT NULL,
    after_ms    BIGINT NOT NULL,
    PRIMARY KEY (storage_id, topic)
);

-- `number` is the order of creation; `version` is another one after every change of cursors, slots or streams.
-- Whoever changes anything of a subscription locks its row first.
CREATE SCHEMA IF NOT EXISTS strandline;
CREATE TABLE strandline.subscriptions (
    number       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    key          TEXT NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    event_types  TEXT[] NOT NULL,
    definition   TEXT NOT NULL,
    epoch        BIGINT NOT NULL DEFAULT 1,
    version      BIGINT NOT NULL DEFAULT 1
);
-- A stream lives until `expires_ms` on the server's clock, unless it has ended before.
CREATE TABLE strandline.subscription_streams (
    number           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    subscription_id  TEXT NOT NULL REFERENCES strandline.subscriptions (id) ON DELETE CASCADE,
    node             TEXT NOT NULL,
    epoch            BIGINT NOT NULL,
    direct           TEXT,
    expires_ms       BIGINT NOT NULL,
    ended_ms         BIGINT
);
CREATE INDEX subscription_streams_of ON strandline.subscription_streams (subscription_id);
CREATE INDEX subscription_streams_of_node ON strandline.subscription_streams (node);
-- The committed cursor of every partition, the stream that reads it, and the one that is to get it next.
CREATE TABLE strandline.subscription_cursors (
    subscription_id  TEXT NOT NULL REFERENCES strandline.subscriptions (id) ON DELETE CASCADE,
    event_type       TEXT COLLATE "C" NOT NULL,
    event_type_id    TEXT NOT NULL,
    partition        INTEGER NOT NULL,
    timeline         BIGINT NOT NULL,
    position         BIGINT NOT NULL,
    skipped          BIGINT NOT NULL DEFAULT 0,
    owner            TEXT,
    heir             TEXT,
    PRIMARY KEY (subscription_id, event_type, partition)
);
CREATE INDEX subscription_cursors_of ON strandline.subscription_cursors (owner);

-- An event type's row is what claims are counted on, and locked by whoever changes anything of the event type;
-- every row that was read went one way.
CREATE SCHEMA IF NOT EXISTS strandline;
CREATE TABLE strandline.archive_types (
    event_type   TEXT COLLATE "C" PRIMARY KEY,
    entry_id     TEXT NOT NULL,
    incarnation  INTEGER NOT NULL DEFAULT 1,
    epoch        BIGINT NOT NULL DEFAULT 1,
    read_ms      BIGINT NOT NULL DEFAULT -1,
    read         BIGINT NOT NULL DEFAULT 0,
    archived     BIGINT NOT NULL DEFAULT 0,
    late         BIGINT NOT NULL DEFAULT 0,
    quarantined  BIGINT NOT NULL DEFAULT 0,
    dropped      BIGINT NOT NULL DEFAULT 0,
    skipped      BIGINT NOT NULL DEFAULT 0,
    CHECK (read = archived + late + quarantined + dropped)
);
CREATE TABLE strandline.archive_terms (
    event_type  TEXT COLLATE "C" NOT NULL,
    from_ms     BIGINT NOT NULL,
    to_ms       BIGINT,
    PRIMARY KEY (event_type, from_ms)
);
CREATE UNIQUE INDEX one_open_archive_term ON strandline.archive_terms (event_type) WHERE to_ms IS NULL;
-- Consumed up to where, and the last finished shift.
CREATE TABLE strandline.archive_partitions (
    event_type        TEXT COLLATE "C" NOT NULL,
    partition         INTEGER NOT NULL,
    timeline          BIGINT NOT NULL,
    position          BIGINT NOT NULL,
    max_timestamp_ms  BIGINT NOT NULL,
    shift             BIGINT NOT NULL,
    start_ms          BIGINT NOT NULL,
    end_ms            BIGINT NOT NULL,
    PRIMARY KEY (event_type, partition)
);
CREATE TABLE strandline.archive_files (
    path         TEXT COLLATE "C" PRIMARY KEY,
    event_type   TEXT COLLATE "C" NOT NULL,
    hour_ms      BIGINT NOT NULL,
    kind         TEXT NOT NULL,
    published    BOOLEAN NOT NULL DEFAULT FALSE,
    partition    INTEGER NOT NULL,
    timeline     BIGINT NOT NULL,
    first        BIGINT NOT NULL,
    last         BIGINT NOT NULL,
    rows         BIGINT NOT NULL,
    bytes        BIGINT NOT NULL,
    sha256       TEXT NOT NULL,
    min_time_ms  BIGINT NOT NULL,
    max_time_ms  BIGINT NOT NULL,
    staged       TEXT NOT NULL
);
CREATE INDEX archive_files_of_hour ON strandline.archive_files (event_type, hour_ms);
CREATE INDEX publishing_archive_files ON strandline.archive_files (event_type) WHERE NOT published;
-- Revision 0 is not flagged; `written` is in the files, `settled` is in the flag above.
CREATE TABLE strandline.archive_hours (
    event_type  TEXT COLLATE "C" NOT NULL,
    hour_ms     BIGINT NOT NULL,
    path        TEXT COLLATE "C" UNIQUE,
    revision    BIGINT NOT NULL DEFAULT 0,
    written     BIGINT NOT NULL DEFAULT 0,
    settled     BIGINT NOT NULL DEFAULT 0,
    stale       BOOLEAN NOT NULL DEFAULT FALSE,
    barrier     TEXT,
    flagged_ms  BIGINT NOT NULL DEFAULT -1,
    epoch       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (event_type, hour_ms)
);
CREATE INDEX archive_hours_by_time ON strandline.archive_hours (hour_ms);
CREATE INDEX flagged_archive_hours ON strandline.archive_hours (event_type, hour_ms) WHERE revision > 0;
CREATE INDEX unwritten_archive_hours ON strandline.archive_hours (event_type, hour_ms)
WHERE written < revision OR stale;
CREATE INDEX unsettled_archive_hours ON strandline.archive_hours (hour_ms) WHERE settled < written;
CREATE TABLE strandline.archive_periods (
    path      TEXT COLLATE "C" PRIMARY KEY,
    start_ms  BIGINT NOT NULL,
    revision  BIGINT NOT NULL,
    written   BIGINT NOT NULL DEFAULT 0,
    settled   BIGINT NOT NULL DEFAULT 0,
    children  TEXT NOT NULL
);
CREATE INDEX archive_periods_by_time ON strandline.archive_periods (start_ms);
CREATE INDEX unwritten_archive_periods ON strandline.archive_periods (start_ms) WHERE written < revision;
CREATE INDEX unsettled_archive_periods ON strandline.archive_periods (start_ms) WHERE settled < written;
-- On the server's clock.
CREATE TABLE strandline.archive_owners (
    owner       TEXT PRIMARY KEY,
    expires_ms  BIGINT NOT NULL,
    told        TEXT NOT NULL
);
CREATE TABLE strandline.archive_leases (
    name   TEXT COLLATE "C" PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES strandline.archive_owners (owner) ON DELETE CASCADE
);

INSERT INTO strandline."catalog" ("id", "layout", "version") OVERRIDING SYSTEM VALUE VALUES (1, 2, 1589682616033171801);
INSERT INTO strandline."storages" ("id", "definition", "is_default") OVERRIDING SYSTEM VALUE VALUES ('default', '{"id":"default","storage_type":"kafka","kafka_configuration":{"bootstrap_servers":"nowhere:9092","properties":{}}}', true);
INSERT INTO strandline."event_types" ("id", "name", "definition") OVERRIDING SYSTEM VALUE VALUES ('99436fba-7337-4f71-81ba-dc1cfdd9b9a2', 'orders', '{"name":"orders","owning_application":"","category":"undefined","partitions":null,"partition_strategy":"random","partition_key_fields":[],"schema":{"type":"json_schema","schema":"{}","version":"1.0.0","created_at":null},"compatibility_mode":"forward","cleanup_policy":"delete","enrichment_strategies":[],"default_statistic":null,"options":{"retention_time":null},"ordering_key_fields":[],"ordering_instance_ids":[],"authorization":null,"audience":null,"annotations":{},"labels":{},"created_at":null,"updated_at":null}');
INSERT INTO strandline."event_types" ("id", "name", "definition") OVERRIDING SYSTEM VALUE VALUES ('236453f7-82a6-4ef5-b0bd-34f2bd7e8359', 'visits', '{"name":"visits","owning_application":"","category":"undefined","partitions":null,"partition_strategy":"random","partition_key_fields":[],"schema":{"type":"json_schema","schema":"{}","version":"1.0.0","created_at":null},"compatibility_mode":"forward","cleanup_policy":"delete","enrichment_strategies":[],"default_statistic":null,"options":{"retention_time":null},"ordering_key_fields":[],"ordering_instance_ids":[],"authorization":null,"audience":null,"annotations":{},"labels":{},"created_at":null,"updated_at":null}');
INSERT INTO strandline."schemas" ("event_type_id", "number", "definition") OVERRIDING SYSTEM VALUE VALUES ('99436fba-7337-4f71-81ba-dc1cfdd9b9a2', 1, '{"type":"json_schema","schema":"{}","version":"1.0.0","created_at":null}');
INSERT INTO strandline."schemas" ("event_type_id", "number", "definition") OVERRIDING SYSTEM VALUE VALUES ('236453f7-82a6-4ef5-b0bd-34f2bd7e8359', 1, '{"type":"json_schema","schema":"{}","version":"1.0.0","created_at":null}');
INSERT INTO strandline."timelines" ("id", "event_type_id", "position", "storage_id", "topic", "definition") OVERRIDING SYSTEM VALUE VALUES ('7429204b-c751-43f0-817f-af9f0599bfc0', '236453f7-82a6-4ef5-b0bd-34f2bd7e8359', 1, 'default', 'visits.a3812eb32ce245448e3d6369f1d0cba3', '{"id":"7429204b-c751-43f0-817f-af9f0599bfc0","event_type":"visits","order":1,"storage_id":"default","topic":"visits.a3812eb32ce245448e3d6369f1d0cba3","created_at":"2024-05-01T12:00:00.000Z","switched_at":null,"cleaned_up_at":null,"latest_position":null}');
INSERT INTO strandline."timelines" ("id", "event_type_id", "position", "storage_id", "topic", "definition") OVERRIDING SYSTEM VALUE VALUES ('10dfb881-a064-4ac5-9179-a0f7f52e3755', '99436fba-7337-4f71-81ba-dc1cfdd9b9a2', 1, 'default', 'orders.c0e0d3bdff1342d4ad79081179191dfb', '{"id":"10dfb881-a064-4ac5-9179-a0f7f52e3755","event_type":"orders","order":1,"storage_id":"default","topic":"orders.c0e0d3bdff1342d4ad79081179191dfb","created_at":"2024-05-01T12:00:00.000Z","switched_at":"then","cleaned_up_at":null,"latest_position":{"0":41}}');
INSERT INTO strandline."timelines" ("id", "event_type_id", "position", "storage_id", "topic", "definition") OVERRIDING SYSTEM VALUE VALUES ('9f863ada-780d-4e06-b438-6047b2b6687a', '99436fba-7337-4f71-81ba-dc1cfdd9b9a2', 2, 'default', 'orders.token-1', '{"id":"9f863ada-780d-4e06-b438-6047b2b6687a","event_type":"orders","order":2,"storage_id":"default","topic":"orders.token-1","created_at":"2024-05-01T12:00:00.000Z","switched_at":null,"cleaned_up_at":null,"latest_position":null}');
INSERT INTO strandline."switches" ("number", "token", "event_type_id", "storage_id", "state", "definition") OVERRIDING SYSTEM VALUE VALUES (1, 'token-1', '99436fba-7337-4f71-81ba-dc1cfdd9b9a2', 'default', 'done', '{"token":"token-1","event_type":"orders","kind":"switch","state":"preparing","storage_id":"default","topic":"orders.token-1","partitions":1,"initiator":"me","started_at":"2024-05-01T12:00:00.000Z"}');
INSERT INTO strandline."doomed_topics" ("storage_id", "topic", "after_ms") OVERRIDING SYSTEM VALUE VALUES ('default', 'left.over', 5);
INSERT INTO strandline."subscriptions" ("number", "id", "key", "owner", "event_types", "definition", "epoch", "version") OVERRIDING SYSTEM VALUE VALUES (1, 'a6181243-8094-4ae7-9fc1-58d04c819a7f', '["shop",["orders"],"billing"]', '"shop"', '{orders}', '{"owning_application":"shop","event_types":["orders"],"consumer_group":"billing","read_from":"end","initial_cursors":[],"authorization":null,"annotations":null,"labels":null,"id":"a6181243-8094-4ae7-9fc1-58d04c819a7f","created_at":"2024-05-01T12:00:00.000Z","updated_at":"2024-05-01T12:00:00.000Z","status":null}', 1, 5213603535344801330);
INSERT INTO strandline."subscription_streams" ("number", "id", "subscription_id", "node", "epoch", "direct", "expires_ms", "ended_ms") OVERRIDING SYSTEM VALUE VALUES (1, '1c1117eb-9e7f-4ede-bfc3-c0fdde74927a', 'a6181243-8094-4ae7-9fc1-58d04c819a7f', 'node-1', 1, NULL, 1794795070262, 1794795064269);
INSERT INTO strandline."subscription_cursors" ("subscription_id", "event_type", "event_type_id", "partition", "timeline", "position", "skipped", "owner", "heir") OVERRIDING SYSTEM VALUE VALUES ('a6181243-8094-4ae7-9fc1-58d04c819a7f', 'orders', 'et-1', 0, 1, 9, 0, NULL, NULL);
INSERT INTO strandline."subscription_cursors" ("subscription_id", "event_type", "event_type_id", "partition", "timeline", "position", "skipped", "owner", "heir") OVERRIDING SYSTEM VALUE VALUES ('a6181243-8094-4ae7-9fc1-58d04c819a7f', 'orders', 'et-1', 1, 1,  -1, 0, NULL, NULL);
INSERT INTO strandline."archive_types" ("event_type", "entry_id", "incarnation", "epoch", "read_ms", "read", "archived", "late", "quarantined", "dropped", "skipped") OVERRIDING SYSTEM VALUE VALUES ('orders', '99436fba-7337-4f71-81ba-dc1cfdd9b9a2', 1, 1, 1767261600007, 10, 10, 0, 0, 0, 0);
INSERT INTO strandline."archive_terms" ("event_type", "from_ms", "to_ms") OVERRIDING SYSTEM VALUE VALUES ('orders', 1767261600000, NULL);
INSERT INTO strandline."archive_partitions" ("event_type", "partition", "timeline", "position", "max_timestamp_ms", "shift", "start_ms", "end_ms") OVERRIDING SYSTEM VALUE VALUES ('orders', 0, 1, 9, 1767261600005, 1, 1767261600000, 1767265200000);
INSERT INTO strandline."archive_files" ("path", "event_type", "hour_ms", "kind", "published", "partition", "timeline", "first", "last", "rows", "bytes", "sha256", "min_time_ms", "max_time_ms", "staged") OVERRIDING SYSTEM VALUE VALUES ('2026-01-01/10/orders/data/a.parquet', 'orders', 1767261600000, 'data', true, 0, 1, 0, 9, 10, 100, 'aa', 1767261600000, 1767261600001, '_staging/1');
INSERT INTO strandline."archive_hours" ("event_type", "hour_ms", "path", "revision", "written", "settled", "stale", "barrier", "flagged_ms", "epoch") OVERRIDING SYSTEM VALUE VALUES ('orders', 1767261600000, '2026-01-01/10/orders', 1, 1, 1, false, '{"read_ms":1767265300000,"ends":{"0":[1,9]}}', 1794795064327, 1);
INSERT INTO strandline."archive_periods" ("path", "start_ms", "revision", "written", "settled", "children") OVERRIDING SYSTEM VALUE VALUES ('2026-01-01/10', 1767261600000, 1, 1, 0, '{"2026-01-01/10/orders":1}');
INSERT INTO strandline."archive_owners" ("owner", "expires_ms", "told") OVERRIDING SYSTEM VALUE VALUES ('worker-1', 1794795070308, '[]');
INSERT INTO strandline."archive_leases" ("name", "owner") OVERRIDING SYSTEM VALUE VALUES ('orders', 'worker-1');
SELECT setval(pg_get_serial_sequence('strandline.' || t, 'number'), 100) FROM unnest(ARRAY['switches', 'subscriptions', 'subscription_streams']) t;
