-- Adds a tombstone to a feed, if it exists, and beside it.
-- KEYS: the list of a feed, the records beside it. ARGV: the tombstone, its life in milliseconds.
-- Returns the lengths of both.
local length = redis.call('RPUSHX', KEYS[1], ARGV[1])
local beside = redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {length, beside}
