-- Covers the records that were appended since the last checkpoint with a new one, and trims the oldest ids.
-- KEYS: the list of a feed. ARGV: cap, reserve, the most new records to look at, a new generation.
-- Returns 1, or 0 if the new records are not all additions of new, higher ids: then the list must be rewritten.
-- Ids and times are compared as two numbers of 32 bits, because a number of Lua is exact up to 2^53 only, and the
-- comparison of strings depends on the locale of the server.
local list, cap, reserve = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])

local function above(one, other)
  local high, low = struct.unpack('>I4I4', one)
  local other_high, other_low = struct.unpack('>I4I4', other)
  return high > other_high or (high == other_high and low > other_low)
end

local head = redis.call('LINDEX', list, 0)
if not head then return 0 end
local kind, floor, start = string.sub(head, 1, 1), string.sub(head, 2, 9), string.sub(head, 10, 17)
local known, plain, ids, top, behind, behind_top = struct.unpack('>I4I4I4c8I4c8', head, 26)

local new = redis.call('LRANGE', list, known + 1, -1)
if #new == 0 or #new > tonumber(ARGV[3]) then return 0 end
local seen, distinct, rising = {}, 0, true
local old_top, old_known = top, known
behind, behind_top = old_known, old_top
for number, record in ipairs(new) do
  local flags, id = string.byte(record), string.sub(record, 2, 9)
  -- 1 is an addition without metadata, 9 is one with metadata.
  if (flags ~= 1 and flags ~= 9) or not above(id, old_top) or above(start, string.sub(record, 10, 17)) then
    return 0
  end
  if not seen[id] then
    seen[id] = true
    distinct = distinct + 1
  end
  if above(id, top) then top = id else rising = false end
  if number == #new - reserve then
    behind, behind_top = old_known + number, top
  end
end
if rising and plain == known then plain = known + #new end
known, ids = known + #new, ids + distinct

local surplus = ids - cap
if surplus > 0 then
  -- Each of the first `plain` records is the only record of its id, and their ids rise.
  if surplus > plain then return 0 end
  kind, floor = string.char(15), string.sub(redis.call('LINDEX', list, surplus), 2, 9)
  redis.call('LTRIM', list, surplus, -1)
  known, plain, ids, behind = known - surplus, plain - surplus, cap, math.max(behind - surplus, 0)
end
local measures = struct.pack('>I4I4I4c8I4c8', known, plain, ids, top, behind, behind_top)
redis.call('LSET', list, 0, kind .. floor .. start .. ARGV[4] .. measures)
return 1
