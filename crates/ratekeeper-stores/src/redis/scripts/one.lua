-- One charge: decides, and writes what has changed. Tells the outcome (0 denied, 1 it fits, 2 not
-- understood), the time, and the state as it was.
local fits, state, last, kept, told = decide(redis.call('GET', KEYS[1]), now, ARGV[3], 2, op)
if fits == nil then return struct.pack('>BI7', 2, now) end
if state and op ~= 'p' then keep(KEYS[1], state, last, kept) end
return struct.pack('>BI7', fits and 1 or 0, now) .. told
