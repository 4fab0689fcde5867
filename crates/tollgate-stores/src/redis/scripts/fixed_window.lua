-- Fixed window: count + cost <= limit, in windows of W that are aligned to the epoch.
--
-- State: the time of the last charge, a code of the window's length, and the count of the window
-- that the last charge lies in.
local function fixed_window(state, now, terms, from, op)
  local W, limit, cost, life = struct.unpack('>I7I7I7I2', terms, from)
  local at, count, kept = now, 0, nil
  local start = at - at % W
  if state then
    if #state ~= 16 then error('not a state') end
    local last, written_life, counted = struct.unpack('>I7I2I7', state)
    if last > at then -- the clock went back
      at, start = last, last - last % W
    end
    if last >= start then count = counted end
    if last >= start and written_life == life then kept = true end
  end
  if op == 'r' then
    if tonumber(ARGV[4]) >= start then count = math.max(count - cost, 0) end
  elseif op == 'f' then
    count = count + math.min(cost, 9007199254740991 - count)
  elseif cost <= limit - count then
    count = count + cost
  else
    return false, nil, nil, nil, state or ''
  end
  local matters_until = start + W
  local last_step = matters_until - matters_until % STEP
  local written = struct.pack('>I7I2I7', at, life, count)
  return true, written, last_step, kept and last_step, state or ''
end
