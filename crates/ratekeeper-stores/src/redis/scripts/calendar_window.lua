-- Calendar window: count + cost <= limit, in windows that the caller has computed around its own time:
-- the starts of three windows, and the end of the last.
--
-- State: that of a fixed window. When the window of the count began, a code of its unit, and the count.
local function calendar_window(state, now, params, from, op)
  local first, second, third, finish, limit, cost, life = struct.unpack('>I7I7I7I7I7I7I2', params, from)
  if now < first or now >= finish then return nil, 3 end -- the clocks differ by more than a window
  local count, counted_at, kept, counted = 0, now, nil, nil
  if state then
    if #state ~= 16 then error('not a state') end
    local began, written_life
    began, written_life, counted = struct.unpack('>I7I2I7', state)
    if written_life ~= life then return nil end -- windows of another unit
    if began > now then -- the clock went back
      if began ~= second and began ~= third then return nil end
      counted_at = began
    end
    kept = began
  end
  local start, matters_until = first, second
  if counted_at >= third then
    start, matters_until = third, finish
  elseif counted_at >= second then
    start, matters_until = second, third
  end
  if kept == start then count = counted else kept = nil end
  if op == 'r' then
    if tonumber(ARGV[4]) >= start then count = math.max(count - cost, 0) end
  elseif op == 'f' then
    count = count + math.min(cost, 9007199254740991 - count)
  elseif op == 'F' then
    local count_max = struct.unpack('>I7', params, from + 44)
    count = math.max(count, math.min(count + math.min(cost, 9007199254740991 - count), count_max))
  elseif cost <= limit - count then
    count = count + cost
  else
    return false, nil, nil, nil, state or ''
  end
  local last_step = matters_until - matters_until % STEP
  local written = struct.pack('>I7I2I7', start, life, count)
  return true, written, last_step, kept and last_step, state or ''
end
