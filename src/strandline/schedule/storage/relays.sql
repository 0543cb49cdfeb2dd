-- Relays, each beside the messages of its schedule, so that both change in one transaction; and their processes.

-- name: create
-- `schedule` is the number of the schedule: a schedule that is created again has no relay. `epoch` is the number of
-- the process that empties the schedule; `rounds` counts its records.
CREATE TABLE relays (
    schedule   BIGINT PRIMARY KEY,
    source     TEXT NOT NULL,
    source_id  TEXT NOT NULL,
    target     TEXT NOT NULL,
    epoch      BIGINT NOT NULL,
    rounds     BIGINT NOT NULL
) WITHOUT ROWID;
-- How far the source is filled into the schedule.
CREATE TABLE relay_positions (
    schedule   BIGINT NOT NULL REFERENCES relays (schedule) ON DELETE CASCADE,
    partition  INTEGER NOT NULL,
    cursor     TEXT NOT NULL,
    PRIMARY KEY (schedule, partition)
) WITHOUT ROWID;
-- The messages that are being published, at most one record at a time: their ids in order, and where the partitions
-- of the target ended before.
CREATE TABLE relay_records (
    schedule   BIGINT PRIMARY KEY REFERENCES relays (schedule) ON DELETE CASCADE,
    round      BIGINT NOT NULL,
    target_id  TEXT NOT NULL,
    ends       TEXT NOT NULL,
    ids        TEXT NOT NULL
) WITHOUT ROWID;
-- Records of the source that cannot be relayed. `cursor` is where the record is in the source.
CREATE TABLE relay_dead_letters (
    schedule   BIGINT NOT NULL REFERENCES relays (schedule) ON DELETE CASCADE,
    id         TEXT COLLATE "C" NOT NULL,
    partition  INTEGER NOT NULL,
    cursor     TEXT NOT NULL,
    reason     TEXT NOT NULL,
    value      BYTEA,
    PRIMARY KEY (schedule, id)
) WITHOUT ROWID;
CREATE TABLE relay_processes (
    owner       TEXT PRIMARY KEY,
    boot        TEXT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    progress    TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE relay_leases (
    name   TEXT COLLATE "C" PRIMARY KEY,
    owner  TEXT NOT NULL REFERENCES relay_processes (owner) ON DELETE CASCADE
) WITHOUT ROWID;

-- part: its_number
(SELECT number FROM schedules WHERE name = :schedule)

-- name: forget
-- The relays of schedules that were deleted.
DELETE FROM relays WHERE schedule NOT IN (SELECT number FROM schedules WHERE name IS NOT NULL);

-- name: begin
INSERT INTO relays (schedule, source, source_id, target, epoch, rounds)
SELECT number, :source, :source_id, :target, 0, 0 FROM schedules WHERE name = :schedule
ON CONFLICT (schedule) DO NOTHING;

-- name: relay
SELECT r.source, r.source_id, r.target FROM relays r WHERE r.schedule = {its_number};

-- name: take_over
UPDATE relays SET epoch = epoch + 1 WHERE schedule = {its_number} RETURNING epoch;

-- name: next_round
-- No row if another process has taken over. On PostgreSQL, it waits until this transaction has ended.
UPDATE relays SET rounds = rounds + 1 WHERE schedule = {its_number} AND epoch = :epoch RETURNING rounds;

-- name: hold
UPDATE relays SET rounds = rounds WHERE schedule = {its_number} AND epoch = :epoch RETURNING rounds;

-- name: positions
SELECT partition, cursor FROM relay_positions WHERE schedule = {its_number} ORDER BY partition;

-- name: begin_position
INSERT INTO relay_positions (schedule, partition, cursor)
SELECT schedule, :partition, :cursor FROM relays WHERE schedule = {its_number} AND source_id = :source_id
ON CONFLICT (schedule, partition) DO NOTHING RETURNING partition;

-- name: move_position
UPDATE relay_positions SET cursor = :cursor
WHERE schedule = {its_number} AND partition = :partition AND cursor = :after
    AND EXISTS (SELECT 1 FROM relays r WHERE r.schedule = relay_positions.schedule AND r.source_id = :source_id)
RETURNING partition;

-- name: open_record
INSERT INTO relay_records (schedule, round, target_id, ends, ids)
SELECT number, :round, :target_id, :ends, :ids FROM schedules WHERE name = :schedule
ON CONFLICT (schedule) DO NOTHING RETURNING round;

-- name: record
SELECT round, target_id, ends, ids FROM relay_records WHERE schedule = {its_number};

-- name: close_record
DELETE FROM relay_records WHERE schedule = {its_number} AND round = :round RETURNING ids;

-- name: add_dead_letter
INSERT INTO relay_dead_letters (schedule, id, partition, cursor, reason, value)
SELECT number, :id, :partition, :cursor, :reason, :value FROM schedules WHERE name = :schedule
ON CONFLICT (schedule, id) DO NOTHING;

-- name: dead_letters
SELECT id, partition, cursor, reason, value FROM relay_dead_letters
WHERE schedule = {its_number} AND id > :after ORDER BY id LIMIT :limit;

-- include: process_leases.sql

-- part: processes
relay_processes

-- part: leases
relay_leases

-- part: progress
progress
