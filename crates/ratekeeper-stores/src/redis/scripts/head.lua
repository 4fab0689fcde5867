-- Every script begins with this, goes on with the algorithms it needs, and ends with `one.lua` or
-- `several.lua`.
--
-- KEYS     the state of each charge
-- ARGV[1]  the time in microseconds, or '' for the server's own
-- ARGV[2]  'c' to check, 'p' to peek, 'f' to charge without a check, 'F' likewise up to a maximum debt,
--          'r' to refund
-- ARGV[3]  the parameters of each charge: a letter for the algorithm and its numbers, packed; behind them
--          the maximum debt, if there is one
-- ARGV[4]  when the refunded charge was made
--
-- All numbers are whole and below 2^53, where a double is exact.
--
-- An algorithm is a function of the state (false if there is none), the time, the parameters and the
-- position of its numbers in them, and the operation. It returns
--   whether the charge fits; nil if the script cannot decide, then with the outcome that says why: 2
--     or nil if the state was written under another limit, which the caller converts, 3 if the time is
--     in no window of the calendar that the caller has computed;
--   the next state, nil if it does not change;
--   the time step until which to keep the next state, and the one of the state before;
--   the state before, from which the caller computes waits and what remains.

local given, op = ARGV[1], ARGV[2]
local now
if given == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(given)
end

-- States are kept a little longer than they matter, until the end of a step of 2^22 microseconds
-- (4 s), so that most writes need not change the expiry.
local STEP = 4194304

-- A time given by the caller is unrelated to the server's, so the state is kept for a day longer.
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
