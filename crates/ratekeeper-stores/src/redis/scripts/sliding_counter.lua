-- Is a*b <= c*d, exactly? a and c are below 2^26, b and d below 2^53: the products are taken in two
-- parts of which none reaches 2^53.
local function product_le(a, b, c, d)
  local bl, dl = b % 134217728, d % 134217728 -- 2^27
  local low, other_low = a * bl, c * dl
  local low_rest, other_rest = low % 134217728, other_low % 134217728
  local high = a * ((b - bl) / 134217728) + (low - low_rest) / 134217728
  local other_high = c * ((d - dl) / 134217728) + (other_low - other_rest) / 134217728
  return high < other_high or high == other_high and low_rest <= other_rest
end

-- The largest c with p*rest <= (usage_max - c)*W, by halving; 0 if there is none.
local function current_max(p, rest, usage_max, W)
  local fits, above = 0, usage_max + 1
  while above - fits > 1 do
    local c = math.floor((fits + above) / 2)
    if product_le(p, rest, usage_max - c, W) then fits = c else above = c end
  end
  return fits
end

-- Sliding counter: p*(W - e) + (c + n)*W <= L*W, where p and c are the counts of the previous and
-- the present window, e the time into the present one, and n the cost. Compared as
-- p*(W - e) <= (L - c - n)*W.
--
-- State: when the present window began, a code of its length, p and c.
local function sliding_counter(state, now, params, from, op)
  local W, limit, cost, life, is_small = struct.unpack('>I7I7I7I2B', params, from)
  local start, p, c, kept = now - now % W, 0, 0, nil
  if state then
    if #state ~= 17 then error('not a state') end
    local began, written_life
    began, written_life, p, c = struct.unpack('>I7I2I4I4', state)
    if written_life ~= life or began % W ~= 0 then return nil end -- windows of another length
    if began >= start then -- later if the clock went back
      start, kept = began, true
    elseif began + W == start then
      p, c = c, 0
    else
      p, c = 0, 0
    end
  end
  if op == 'r' then
    local charged_at, rest = tonumber(ARGV[4]), cost
    if charged_at >= start then
      c, rest = math.max(c - cost, 0), math.max(cost - c, 0)
    end
    if charged_at + W >= start then p = math.max(p - rest, 0) end
  elseif op == 'f' then
    c = math.min(c + math.min(cost, 67108863), 67108863)
  elseif op == 'F' then
    local usage_max, rest = struct.unpack('>I7', params, from + 24), start + W - math.max(now, start)
    c = math.max(c, math.min(c + math.min(cost, 67108863), current_max(p, rest, usage_max, W)))
  else
    local room, rest = limit - c - cost, start + W - math.max(now, start)
    if room < 0 then return false, nil, nil, nil, state or '' end
    local fits
    if is_small == 1 and p <= limit then -- L*W is below 2^53
      fits = p * rest <= room * W
    else
      fits = product_le(p, rest, room, W)
    end
    if not fits then return false, nil, nil, nil, state or '' end
    c = c + cost
  end
  local written = struct.pack('>I7I2I4I4', start, life, p, c)
  local matters_until = start + W + W
  local last_step = matters_until - matters_until % STEP
  return true, written, last_step, kept and last_step, state or ''
end
