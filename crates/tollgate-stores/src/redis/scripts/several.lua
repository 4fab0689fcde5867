-- Several charges: all of them if all fit, and none otherwise. Tells the outcome (0 denied, 1 all
-- fit, 2 not understood), the time, and each state as it was, with its length.
local deciders = { w = fixed_window, c = sliding_counter, b = bucket, l = sliding_log }
local states = redis.call('MGET', unpack(KEYS))
local all_fit, outcomes, reply = 1, {}, { '' }
for i = 1, #KEYS do
  local terms = ARGV[i + 2]
  local fits, state, fresh_ms, told = deciders[string.sub(terms, 1, 1)](states[i], now, terms, op)
  if fits == nil then return struct.pack('>BI7', 2, now) end
  if not fits then all_fit = 0 end
  outcomes[i] = { fits, state, fresh_ms }
  reply[i + 1] = struct.pack('>B', #told) .. told
end
if op ~= 'p' then
  for i = 1, #KEYS do
    local fits, state, fresh_ms = unpack(outcomes[i], 1, 3)
    -- When denied, only what denies may change: a log that counts rejected attempts.
    if state and (all_fit == 1 or not fits) then keep(KEYS[i], state, fresh_ms) end
  end
end
reply[1] = struct.pack('>BI7', all_fit, now)
return table.concat(reply)
