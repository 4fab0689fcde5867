-- Fixed window: count + cost <= limit, in windows of W that are aligned to the epoch.
--
-- State: when the window of the count began, a code of the window's length, and the count.
local function fixed_window(state, now, params, from, op)
  local W, limit, cost, life = struct.unpack('>I7I7I7I2', params, from)
  local start, count, kept = now - now % W, 0, nil
  if state then
    if #state ~= 16 then error('not a state') end
    local began, written_life, counted = struct.unpack('>I7I2I7', state)
    if written_life ~= life or began % W ~= 0 then return nil end -- windows of another length
    if began >= start then -- later if the clock went back
      start, count, kept = began, counted, true
    end
  end
  if op == 'r' then
    if tonumber(ARGV[4]) >= start then count = math.max(count - cost, 0) end
  elseif op == 'f' then
    count = count + math.min(cost, 9007199254740991 - count)
  elseif op == 'F' then
    local count_max = struct.unpack('>I7', params, from + 23)
    count = math.max(count, math.min(count + math.min(cost, 9007199254740991 - count), count_max))
  elseif cost <= limit - count then
    count = count + cost
  else
    return false, nil, nil, nil, state or ''
  end
  local matters_until = start + W
  local last_step = matters_until - matters_until % STEP
  local written = struct.pack('>I7I2I7', start, life, count)
  return true, written, last_step, kept and last_step, state or ''
end
