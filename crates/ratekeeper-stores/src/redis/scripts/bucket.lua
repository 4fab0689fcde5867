-- Token bucket and leaky bucket. Both remember one moment: when the bucket will be back at rest. A
-- charge moves it by cost*W/R, and is admitted if it stays within B*W/R of now.
--
-- A moment is whole microseconds and a fraction in units of 1/count. Nothing is multiplied or
-- divided: the terms bring both spans.
--
-- State: the microseconds, then pace*scale + fraction, where the pace tells the rate that the state
-- was written at. Fractions that need fewer bits take fewer bytes.
local function bucket(state, now, terms, from, op)
  local scale, pace, count, cost, cost_frac, fill, fill_frac =
    struct.unpack('>I4I4I4I7I4I7I4', terms, from)
  local form, size = '>I7I4', 11
  if scale == 8192 then
    form, size = '>I7I5', 12
  elseif scale == 67108864 then
    form, size = '>I7I7', 14
  end

  local rest, frac, kept = now, 0, nil
  if state then
    local at, data
    if #state == size then
      at, data = struct.unpack(form, state)
    elseif #state ~= 11 and #state ~= 12 and #state ~= 14 then
      error('not a state')
    else
      at, data = struct.unpack('>I7', state), -1
    end
    kept = at - at % STEP
    if at >= now then
      local written_frac = data % scale
      if data - written_frac == pace * scale then
        rest, frac = at, written_frac
        if frac >= count then frac = count - 1 end
      elseif at > now then
        return nil -- written at another rate
      end
    end
  end

  if op == 'r' then
    -- What was charged then is gone once a whole bucket could have flowed since.
    local counts_for = math.max(fill - math.max(now - tonumber(ARGV[4]), 0), 0)
    if cost > counts_for or cost == counts_for and cost_frac > fill_frac then
      cost, cost_frac = counts_for, fill_frac
    end
    if frac < cost_frac then
      frac, cost = frac + count, cost + 1
    end
    rest, frac = rest - cost, frac - cost_frac
    if rest < now then
      rest, frac = now, 0
    end
    return true, struct.pack(form, rest, pace * scale + frac), rest - rest % STEP, kept, state or ''
  end

  frac = frac + cost_frac
  if frac >= count then
    frac, cost = frac - count, cost + 1
  end
  if op == 'f' then
    rest = rest + math.min(cost, 9007199254740991 - rest)
  else
    local room = now + fill - rest
    if cost > room or cost == room and frac > fill_frac then
      return false, nil, nil, nil, state or ''
    end
    rest = rest + cost
  end
  return true, struct.pack(form, rest, pace * scale + frac), rest - rest % STEP, kept, state or ''
end
