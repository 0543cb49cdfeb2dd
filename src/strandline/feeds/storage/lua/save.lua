-- Saves positions, unless this server has started since the caller asked for its run ids: it may lack what they cover.
-- KEYS: the positions. ARGV: the run ids of all masters in one string, then each partition and its position.
-- Returns 1, or 0 if nothing was saved.
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if not string.find(ARGV[1], run_id, 1, true) then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
