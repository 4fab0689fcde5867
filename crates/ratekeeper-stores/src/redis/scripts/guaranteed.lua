-- Guaranteed capacity: a total and its guarantees, each a token bucket with a state as in `gcra.lua`. A charge is
-- admitted if it fits its guarantee and the total, which it is then charged to; or by borrowing, if the
-- total has so much beyond the levels of all guarantees, and is then charged to the total only.
--
-- Levels are compared in units in which all of them are whole. They are less than 2^53.

-- Reads the state of a bucket, with its parameters at `from`: those of `gcra.lua`, and how many units a level of 1
-- is. Returns its level in units, its TAT, and the time step until which the state is kept. Returns nil if the state
-- was written under another rate.
local function read_bucket(state, params, from)
  local scale, rate_code, denominator, _, _, tolerance, tolerance_frac, weight =
    struct.unpack('>I4I4I4I7I4I7I4I7', params, from)
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
        tat, frac = at, math.min(written_frac, denominator - 1)
      elseif at > now then
        return nil
      end
    end
  end
  local left = (tolerance - (tat - now)) * denominator + tolerance_frac - frac
  return math.max(left, 0) * weight, tat, frac, kept -- one in debt is empty
end

-- Returns the state after a charge that fits, and the time step until which to keep it.
local function charge_bucket(tat, frac, params, from)
  local scale, rate_code, denominator, increment, increment_frac = struct.unpack('>I4I4I4I7I4', params, from)
  frac = frac + increment_frac
  if frac >= denominator then
    frac, increment = frac - denominator, increment + 1
  end
  tat = tat + increment
  local form = '>I7I4'
  if scale == 8192 then
    form = '>I7I5'
  elseif scale == 67108864 then
    form = '>I7I7'
  end
  return struct.pack(form, tat, rate_code * scale + frac), tat - tat % STEP
end

-- Decides on the buckets whose states are KEYS[first] and those after it. Their parameters are at `from`, each
-- prefixed with its length: how many buckets there are, which one is the guarantee of the class (from 0, which is
-- the total and stands for none), and how many units the charge needs; then those of each bucket.
--
-- Sets the next states in `next_states`, and the time steps in `last` and `kept`, at the indices of their keys. Returns
-- whether the charge fits (nil if a state was written under another rate), all states before, each prefixed with its
-- length, how many there are, and where the parameters end.
local function guaranteed(first, params, from, next_states, last, kept)
  local count, own, needed = struct.unpack('>BBI7', params, from + 2)
  from = from + 1 + string.byte(params, from)
  local total, own_level, held, before = 0, -1, 0, {}
  local ats, tats, fracs = {}, {}, {}
  for i = 0, count - 1 do
    local state = redis.call('GET', KEYS[first + i])
    local level
    level, tats[i], fracs[i], kept[first + i] = read_bucket(state, params, from + 2)
    if not level then return nil end
    if i == 0 then total = level else held = held + level end
    if i == own and own > 0 then own_level = level end
    before[i + 1] = string.char(state and #state or 0) .. (state or '')
    ats[i] = from + 2
    from = from + 1 + string.byte(params, from)
  end
  local by_guarantee = needed <= own_level and needed <= total
  local fits = by_guarantee or needed <= total - held
  if fits then
    next_states[first], last[first] = charge_bucket(tats[0], fracs[0], params, ats[0])
  end
  if by_guarantee then
    next_states[first + own], last[first + own] = charge_bucket(tats[own], fracs[own], params, ats[own])
  end
  return fits, table.concat(before), count, from
end
