-- Two charges: what `several.lua` does, without a loop and tables, for the most common number. `first`
-- and `second` are their algorithms.
local params = ARGV[3]
local second_from = string.byte(params) + 4
local fits, state, last, kept, previous = first(redis.call('GET', KEYS[1]), now, params, 3, op)
local fits_2, state_2, last_2, kept_2, previous_2 =
  second(redis.call('GET', KEYS[2]), now, params, second_from, op)
if fits == nil then return struct.pack('>BI7', state or 2, now) end
if fits_2 == nil then return struct.pack('>BI7', state_2 or 2, now) end
local all_fit = fits and fits_2
if op ~= 'p' then
  -- When denied, only what denies may change: a log that counts rejected attempts.
  if state and (all_fit or not fits) then keep(KEYS[1], state, last, kept) end
  if state_2 and (all_fit or not fits_2) then keep(KEYS[2], state_2, last_2, kept_2) end
end
return struct.pack('>BI7', all_fit and 1 or 0, now)
  .. string.char(#previous) .. previous .. string.char(#previous_2) .. previous_2
