-- Several charges: all of them if all fit, and none otherwise. Returns the outcome (0 denied, 1 all
-- fit, 2 written under another limit, 3 in no window of the caller), the time, and each state before. Parameters and states are
-- prefixed with their lengths. `choose` returns the algorithm of a letter.
local params, from, all_fit = ARGV[3], 1, 1
local fitting, states, last, kept, reply = {}, {}, {}, {}, { '' }
for i = 1, #KEYS do
  local len, letter = string.byte(params, from, from + 1)
  local previous
  fitting[i], states[i], last[i], kept[i], previous =
    choose(letter)(redis.call('GET', KEYS[i]), now, params, from + 2, op)
  if fitting[i] == nil then return struct.pack('>BI7', states[i] or 2, now) end
  if not fitting[i] then all_fit = 0 end
  reply[i + 1] = string.char(#previous) .. previous
  from = from + 1 + len
end
if op ~= 'p' then
  for i = 1, #KEYS do
    -- When denied, only what denies may change: a log that counts rejected attempts.
    if states[i] and (all_fit == 1 or not fitting[i]) then
      keep(KEYS[i], states[i], last[i], kept[i])
    end
  end
end
reply[1] = struct.pack('>BI7', all_fit, now)
return table.concat(reply)
