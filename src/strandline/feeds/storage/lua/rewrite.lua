-- Replaces the records of a list that the caller has read. Records that were appended since then stay behind them.
-- KEYS: the list of a feed. ARGV: the first record that was read, how many were read, then the new records.
-- Returns 1, or 0 if the list was rewritten or removed meanwhile.
local function push(key, records, first, last)
  for from = first, last, 1000 do
    redis.call('RPUSH', key, unpack(records, from, math.min(from + 999, last)))
  end
end

local list = KEYS[1]
if redis.call('LINDEX', list, 0) ~= ARGV[1] then return 0 end
local life = redis.call('PTTL', list)
local later = redis.call('LRANGE', list, tonumber(ARGV[2]), -1)
redis.call('DEL', list)
push(list, ARGV, 3, #ARGV)
push(list, later, 1, #later)
if life > 0 then redis.call('PEXPIRE', list, life) end
return 1
