-- Token bucket and leaky bucket, as GCRA. The state is the TAT (theoretical arrival time). A charge
-- moves it by its increment, the cost times the emission interval, and is admitted if it stays within
-- the burst tolerance of now.
--
-- A time is whole microseconds and a fraction in units of 1/denominator. Nothing is multiplied or
-- divided: the parameters contain the increment and the burst tolerance.
--
-- State: the microseconds, then rate_code*scale + fraction, where the rate code is that of the rate
-- that the state was written under. Fractions that need fewer bits take fewer bytes.
-- Moves the TAT by an increment, but not further ahead of now than a debt may.
local function charge_up_to(now, tat, frac, increment, next_frac, tolerance, tolerance_frac)
  local available = tolerance - (tat - now)
  if increment < available or increment == available and next_frac <= tolerance_frac then
    return tat + math.min(increment, 9007199254740991 - tat), next_frac
  elseif available < 0 or available == 0 and frac >= tolerance_frac then
    return tat, frac -- owes more already
  end
  return math.min(now + tolerance, 9007199254740991), tolerance_frac
end

local function gcra(state, now, params, from, op)
  local scale, rate_code, denominator, increment, increment_frac, tolerance, tolerance_frac =
    struct.unpack('>I4I4I4I7I4I7I4', params, from)
  local form, size = '>I7I4', 11
  if scale == 8192 then
    form, size = '>I7I5', 12
  elseif scale == 67108864 then
    form, size = '>I7I7', 14
  end

  local tat, frac, kept = now, 0, nil
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
      if data - written_frac == rate_code * scale then
        tat, frac = at, written_frac
        if frac >= denominator then frac = denominator - 1 end
      elseif at > now then
        return nil -- written under another rate
      end
    end
  end

  if op == 'r' then
    -- Time has replenished the charge already, in part or in full: after the burst tolerance, or a debt
    -- after its own time.
    if increment > tolerance or increment == tolerance and increment_frac > tolerance_frac then
      tolerance, tolerance_frac = increment, increment_frac
    end
    local refundable = math.max(tolerance - math.max(now - tonumber(ARGV[4]), 0), 0)
    if increment > refundable or increment == refundable and increment_frac > tolerance_frac then
      increment, increment_frac = refundable, tolerance_frac
    end
    if frac < increment_frac then
      frac, increment = frac + denominator, increment + 1
    end
    tat, frac = tat - increment, frac - increment_frac
    if tat < now then
      tat, frac = now, 0
    end
    return true, struct.pack(form, tat, rate_code * scale + frac), tat - tat % STEP, kept, state or ''
  end

  local frac_before = frac
  frac = frac + increment_frac
  if frac >= denominator then
    frac, increment = frac - denominator, increment + 1
  end
  if op == 'f' then
    tat = tat + math.min(increment, 9007199254740991 - tat)
  elseif op == 'F' then
    tat, frac = charge_up_to(now, tat, frac_before, increment, frac, struct.unpack('>I7I4', params, from + 34))
  else
    local available = now + tolerance - tat
    if increment > available or increment == available and frac > tolerance_frac then
      return false, nil, nil, nil, state or ''
    end
    tat = tat + increment
  end
  return true, struct.pack(form, tat, rate_code * scale + frac), tat - tat % STEP, kept, state or ''
end
