-- What belongs to a change of messages in SQLite and is a part of its statement in PostgreSQL.

-- name: add_body
INSERT OR REPLACE INTO message_bodies (schedule, lane, id, producer_group, is_json, body)
VALUES (:schedule, :lane, :id, :producer_group, :is_json, :body);

-- name: count
INSERT INTO schedule_slots (schedule, size_ms, start_ms, part, count)
SELECT value ->> 0, value ->> 1, value ->> 2, 0, value ->> 3 FROM json_each(:moves) WHERE 0 = 0
ON CONFLICT (schedule, size_ms, start_ms, part) DO UPDATE SET count = schedule_slots.count + excluded.count;
