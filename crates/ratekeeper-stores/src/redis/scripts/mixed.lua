-- Several charges of different kinds: all of them if all fit, and none otherwise. As `several.lua`, but
-- ARGV[2] has a letter for each charge; beside those of the head
--   'l'  looks whether something is left
--   'o'  charges without a check if something is left, 'O' up to a maximum debt
-- These have the parameters of a cost of 1 first. An overdraft's own parameters follow.
local ops, params, from, all_fit = ARGV[2], ARGV[3], 1, 1
local fitting, states, last, kept, reply = {}, {}, {}, {}, { '' }

-- Decides with the parameters at `from`, and moves on to the next ones.
local function decide(state, op)
  local len, letter = string.byte(params, from, from + 1)
  local at = from + 2
  from = from + 1 + len
  return choose(letter)(state, now, params, at, op)
end

for i = 1, #KEYS do
  local op, state = string.sub(ops, i, i), redis.call('GET', KEYS[i])
  local is_look = op == 'l' or op == 'o' or op == 'O'
  local fits, next_state, last_step, kept_step, previous = decide(state, is_look and 'p' or op)
  if fits == nil then return struct.pack('>BI7', next_state or 2, now) end
  if op == 'o' or op == 'O' then
    local _
    _, next_state, last_step, kept_step = decide(state, op == 'o' and 'f' or 'F')
  elseif op == 'l' or op == 'p' then
    next_state = nil
  end
  fitting[i], states[i], last[i], kept[i] = fits, next_state, last_step, kept_step
  if not fitting[i] then all_fit = 0 end
  reply[i + 1] = string.char(#previous) .. previous
end
for i = 1, #KEYS do
  -- When denied, only what denies may change: a log that counts rejected attempts.
  local is_rejected = not fitting[i] and string.sub(ops, i, i) == 'c'
  if states[i] and (all_fit == 1 or is_rejected) then keep(KEYS[i], states[i], last[i], kept[i]) end
end
reply[1] = struct.pack('>BI7', all_fit, now)
return table.concat(reply)
