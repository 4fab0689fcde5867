-- Fixed window: count + cost <= limit, in windows of W that are aligned to the epoch.
--
-- State: the time of the last charge, and the count of the window that it lies in.
local function fixed_window(state, now, terms, op)
  local W, limit, cost = struct.unpack('>I7I7I7', terms, 2)
  local at, count = now, 0
  local start = at - at % W
  if state then
    local last, counted = struct.unpack('>I7I7', state)
    if last > at then -- the clock went back
      at, start = last, last - last % W
    end
    if last >= start then count = counted end
  end
  if op ~= 'f' and cost > limit - count then
    return false, nil, nil, state or ''
  end
  local sum = count
  if cost > 9007199254740991 - count then sum = 9007199254740991 else sum = count + cost end
  return true, struct.pack('>I7I7', at, sum), ms_after(start) + ms_after(W), state or ''
end
