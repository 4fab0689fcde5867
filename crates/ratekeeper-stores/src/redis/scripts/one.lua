-- One charge: decides, and writes what has changed. Returns the outcome (0 denied, 1 fits, 2 written
-- under another limit, 3 in no window of the caller), the time, and the state before.
local fits, state, last, kept, previous = decide(redis.call('GET', KEYS[1]), now, ARGV[3], 2, op)
if fits == nil then return struct.pack('>BI7', state or 2, now) end
if state and op ~= 'p' then keep(KEYS[1], state, last, kept) end
return struct.pack('>BI7', fits and 1 or 0, now) .. previous
