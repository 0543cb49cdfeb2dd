-- Replaces a feed and what is beside it. Records that were appended to either since the caller has read them stay.
-- KEYS: the list of a feed, the records beside it. ARGV: the first record of the list (empty if there is no list),
-- how many records were read of it and of those beside it, the latter in one string, the life of the list (0: as it
-- is) and of what is beside it in milliseconds, how many records the new list has, the new records of the list, and
-- those beside it.
-- Returns 1, or 0 if what was read is no longer there.
local function push(key, records, first, last)
  for from = first, last, 1000 do
    redis.call('RPUSH', key, unpack(records, from, math.min(from + 999, last)))
  end
end

local list, beside = KEYS[1], KEYS[2]
local listed_count, beside_count = tonumber(ARGV[2]), tonumber(ARGV[3])
local old_beside = redis.call('LRANGE', beside, 0, -1)
if (redis.call('LINDEX', list, 0) or '') ~= ARGV[1] or #old_beside < beside_count
  or table.concat(old_beside, '', 1, beside_count) ~= ARGV[4] then
  return 0
end
local life = tonumber(ARGV[5])
if life == 0 then life = redis.call('PTTL', list) end
local later = redis.call('LRANGE', list, listed_count, -1)
redis.call('DEL', list, beside)
local first = 8
local last = first + tonumber(ARGV[7]) - 1
push(list, ARGV, first, last)
push(beside, ARGV, last + 1, #ARGV)
push(beside, old_beside, beside_count + 1, #old_beside)
-- Of a feed that does not exist any more, they are beside it, like all that is later than its drop.
push(last >= first and list or beside, later, 1, #later)
if life > 0 then redis.call('PEXPIRE', list, life) end
redis.call('PEXPIRE', beside, ARGV[6])
return 1
