-- Every script begins with this, goes on with the algorithms it needs, and ends with `one.lua` or
-- `several.lua`.
--
-- KEYS     the state of each charge
-- ARGV[1]  the time in microseconds, or '' for the server's own
-- ARGV[2]  'c' to check, 'p' to peek, 'f' to charge by force, 'r' to give back
-- ARGV[3]  the terms of each charge: a letter for the algorithm and its numbers, packed
-- ARGV[4]  when what is given back was charged
--
-- All numbers are whole and below 2^53, where a double is exact.
--
-- An algorithm is a function of the state (false if there is none), the time, the terms and where its
-- numbers begin in them, and what to do. It returns
--   whether the charge fits; nil if the state was written under another limit, which is not
--     understood here and is for the caller to see to;
--   the state afterwards, nil if it stays;
--   the step of time until which to keep that, and the one until which the state was kept before;
--   what to tell the caller: the state as it was. Waits and what remains are worked out from that.

local given, op = ARGV[1], ARGV[2]
local now
if given == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(given)
end

-- States are kept a little longer than they matter, until the end of the step of 2^22 microseconds
-- (4 s) in which that is, so that most writes need not say how long.
local STEP = 4194304

-- A given time has nothing to do with the server's, so the state is kept for a day longer.
local function keep(key, state, last_step, kept_step)
  if given ~= '' then
    redis.call('SET', key, state, 'PX', math.ceil(math.max(last_step + STEP - now, 0) / 1000) + 86400000)
  elseif last_step == kept_step then
    redis.call('SET', key, state, 'KEEPTTL')
  else
    local last = last_step + STEP
    redis.call('SET', key, state, 'PXAT', (last - last % 1000) / 1000 + 1)
  end
end
