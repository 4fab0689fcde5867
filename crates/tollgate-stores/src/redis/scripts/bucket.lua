-- Token bucket and leaky bucket. Both remember one moment: when the bucket will be back at rest. A
-- charge moves it by cost*W/R, and is admitted if it stays within B*W/R of now.
--
-- A moment is whole microseconds and a fraction in units of 1/count. Nothing is multiplied or
-- divided: the terms bring both spans.
--
-- State: the microseconds, then pace*scale + fraction, where the pace tells the rate that the state
-- was written at. Fractions that need fewer bits take fewer bytes.
local function bucket(state, now, terms, op)
  local scale_bits, pace, count, cost_us, cost_frac, fill_us, fill_frac =
    struct.unpack('>BI4I4I7I4I7I4', terms, 2)
  local form, size, scale = '>I7I4', 11, 1
  if scale_bits == 13 then
    form, size, scale = '>I7I5', 12, 8192
  elseif scale_bits == 26 then
    form, size, scale = '>I7I7', 14, 67108864
  end

  local rest, frac = now, 0
  if state then
    local at = struct.unpack('>I7', state)
    if at >= now then
      local data = -1
      if #state == size then at, data = struct.unpack(form, state) end
      local written_frac = data % scale
      if data - written_frac == pace * scale then
        rest, frac = at, math.min(written_frac, count - 1)
      elseif at > now then
        return nil, nil, nil, state -- written at another rate
      end
    end
  end

  frac = frac + cost_frac
  local cost = cost_us
  if frac >= count then
    frac, cost = frac - count, cost + 1
  end
  local room = now + fill_us - rest
  if op == 'f' then
    if cost > 9007199254740991 - rest then rest = 9007199254740991 else rest = rest + cost end
  elseif cost < room or cost == room and frac <= fill_frac then
    rest = rest + cost
  else
    return false, nil, nil, state or ''
  end
  return true, struct.pack(form, rest, pace * scale + frac), ms_after(rest), state or ''
end
