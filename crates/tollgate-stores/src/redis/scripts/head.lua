-- Every script begins with this, goes on with the algorithms it needs, and ends with `one.lua` or
-- `several.lua`.
--
-- KEYS     the state of each charge
-- ARGV[1]  the time in microseconds, or '' for the server's own
-- ARGV[2]  'c' to check, 'p' to peek, 'f' to charge by force
-- ARGV[3…] the terms of each charge: a letter for the algorithm and its numbers, packed
--
-- All numbers are whole and below 2^53, where a double is exact.
--
-- An algorithm is a function of the state (false if there is none), the time, the terms and what to
-- do. It returns whether the charge fits, the state afterwards (nil if it stays), the millisecond
-- from which on that state equals none, and what to tell the caller: the state as it was. The
-- caller works out waits and what remains from that. A state that was written under another limit
-- is not understood here: then the first is nil, and the caller sees to it.

local given, op = ARGV[1], ARGV[2]
local now
if given == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(given)
end

-- The first whole millisecond after this many microseconds.
local function ms_after(us)
  return (us - us % 1000) / 1000 + 1
end

-- A given time has nothing to do with the server's, so the state is kept for a day longer.
local function keep(key, state, fresh_ms)
  if given == '' then
    redis.call('SET', key, state, 'PXAT', fresh_ms)
  else
    redis.call('SET', key, state, 'PX', math.max(fresh_ms - ms_after(now), 0) + 86400000)
  end
end
