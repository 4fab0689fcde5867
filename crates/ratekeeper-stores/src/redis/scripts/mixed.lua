-- Several charges of different kinds: all of them if all fit, and none otherwise. As `several.lua`, but
-- ARGV[2] has a letter for each charge; beside those of the head
--   'l'  looks whether something is left
--   'o'  charges without a check if something is left, 'O' up to a maximum debt
-- These have the parameters of a cost of 1 first. An overdraft's own parameters follow.
--   'g'  checks a limit with guarantees, 'G' peeks at it; it has several keys (`guaranteed.lua`)
local ops, params, from, key, all_fit = ARGV[2], ARGV[3], 1, 1, 1
-- By key, but the reply by charge.
local rejected, states, last, kept, reply = {}, {}, {}, {}, { '' }

-- Decides with the parameters at `from`, and moves on to the next ones.
local function decide(state, op)
  local len, letter = string.byte(params, from, from + 1)
  local at = from + 2
  from = from + 1 + len
  return choose(letter)(state, now, params, at, op)
end

for i = 1, #ops do
  local op = string.sub(ops, i, i)
  if op == 'g' or op == 'G' then
    local next_states = op == 'g' and states or {}
    local fits, previous, count, rest = choose(103)(key, params, from, next_states, last, kept)
    if fits == nil then return struct.pack('>BI7', 2, now) end
    if not fits then all_fit = 0 end
    reply[i + 1] = previous
    key, from = key + count, rest
  else
    local state = redis.call('GET', KEYS[key])
    local is_look = op == 'l' or op == 'o' or op == 'O'
    local fits, next_state, last_step, kept_step, previous = decide(state, is_look and 'p' or op)
    if fits == nil then return struct.pack('>BI7', next_state or 2, now) end
    if op == 'o' or op == 'O' then
      local _
      _, next_state, last_step, kept_step = decide(state, op == 'o' and 'f' or 'F')
    elseif op == 'l' or op == 'p' then
      next_state = nil
    end
    states[key], last[key], kept[key] = next_state, last_step, kept_step
    if not fits then
      all_fit = 0
      -- When denied, only what denies may change: a log that counts rejected attempts.
      rejected[key] = op == 'c'
    end
    reply[i + 1] = string.char(#previous) .. previous
    key = key + 1
  end
end
for i = 1, #KEYS do
  if states[i] and (all_fit == 1 or rejected[i]) then keep(KEYS[i], states[i], last[i], kept[i]) end
end
reply[1] = struct.pack('>BI7', all_fit, now)
return table.concat(reply)
