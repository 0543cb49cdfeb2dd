-- Replaces a feed and what is beside it, if both are as the caller has read them.
-- KEYS: the list of a feed, the records beside it. ARGV: the first record of the list (empty if there is no list),
-- how many records it has, all records beside it in one string, the life of the list (0: as it is) and of what is
-- beside it in milliseconds, how many records the new list has, the new records of the list, and those beside it.
-- Returns 1, or 0 if something was changed meanwhile.
local function push(key, records, first, last)
  for from = first, last, 1000 do
    redis.call('RPUSH', key, unpack(records, from, math.min(from + 999, last)))
  end
end

local list, beside = KEYS[1], KEYS[2]
if (redis.call('LINDEX', list, 0) or '') ~= ARGV[1] or redis.call('LLEN', list) ~= tonumber(ARGV[2])
  or table.concat(redis.call('LRANGE', beside, 0, -1)) ~= ARGV[3] then
  return 0
end
local life = tonumber(ARGV[4])
if life == 0 then life = redis.call('PTTL', list) end
redis.call('DEL', list, beside)
local first = 7
local last = first + tonumber(ARGV[6]) - 1
push(list, ARGV, first, last)
push(beside, ARGV, last + 1, #ARGV)
if life > 0 then redis.call('PEXPIRE', list, life) end
redis.call('PEXPIRE', beside, ARGV[5])
return 1
