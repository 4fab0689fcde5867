-- One number of 7 bits a byte, lowest first, and where the next one begins.
local function read_number(bytes, from)
  local n, unit = 0, 1
  while true do
    local byte = string.byte(bytes, from)
    from = from + 1
    if byte < 128 then return n + byte * unit, from end
    n, unit = n + (byte - 128) * unit, unit * 128
  end
end

local function write_number(n)
  local bytes = {}
  while n >= 128 do
    bytes[#bytes + 1] = string.char(n % 128 + 128)
    n = (n - n % 128) / 128
  end
  bytes[#bytes + 1] = string.char(n)
  return table.concat(bytes)
end

-- An entry: its distance from the one before and its cost, and where the next one begins. The lowest
-- bit of the distance says whether a cost follows; 1 is not written.
local function read_entry(bytes, from)
  local head
  head, from = read_number(bytes, from)
  if head % 2 == 0 then return head / 2, 1, from end
  local cost
  cost, from = read_number(bytes, from)
  return (head - 1) / 2, cost, from
end

local function write_entry(distance, cost)
  if cost == 1 then return write_number(distance * 2) end
  return write_number(distance * 2 + 1) .. write_number(cost)
end

-- Sliding log: an entry counts while now - t < W; admit when sum + cost <= limit.
--
-- State: the times of the oldest and the newest entry, the latest time seen, and the sum; then the
-- entries. What is reply_state is not the state, which may be long, but what it comes to before the charge
-- or after the denial: the sum that counts, the newest entry, the latest time, and the wait.
local function sliding_log(state, now, params, params_from, op)
  local W, limit, cost, count_rejected = struct.unpack('>I7I7I7B', params, params_from)
  local oldest, newest, seen, total, from, bytes = 0, 0, 0, 0, 1, ''
  if state then
    oldest, newest, seen, total = struct.unpack('>I7I7I7I4', state)
    bytes, from = state, 26
  end
  if now > seen then seen = now end

  local function drop_oldest(entry_cost, next_from)
    from, total = next_from, total - entry_cost
    if from <= #bytes then oldest = oldest + (read_entry(bytes, from)) end
  end
  while from <= #bytes and seen - oldest >= W do
    local _, entry_cost, next_from = read_entry(bytes, from)
    drop_oldest(entry_cost, next_from)
  end

  local function append(entry_cost)
    if from > #bytes then oldest, newest, bytes, from = seen, seen, '', 1 end
    bytes, from = string.sub(bytes, from) .. write_entry(seen - newest, entry_cost), 1
    newest, total = seen, total + entry_cost
  end
  local function packed()
    return struct.pack('>I7I7I7I4', oldest, newest, seen, total) .. bytes
  end
  local function reply_state(wait)
    return struct.pack('>I7I7I7I7', total, newest, seen, wait)
  end

  if cost <= limit - total then
    local before = reply_state(0)
    append(cost)
    return true, packed(), newest + W - (newest + W) % STEP, nil, before
  end

  local next_state
  if count_rejected == 1 and op == 'c' then
    append(math.min(cost, limit))
    -- While the newest entries alone fill the limit, the ones before them decide nothing.
    while true do
      local _, entry_cost, next_from = read_entry(bytes, from)
      if total - entry_cost < limit then break end
      drop_oldest(entry_cost, next_from)
    end
    bytes, from = string.sub(bytes, from), 1
    next_state = packed()
  end
  local excess, at, position, wait = total + cost - limit, oldest, from, 1
  if cost <= limit then
    while true do
      local _, entry_cost, next_position = read_entry(bytes, position)
      excess, position = excess - entry_cost, next_position
      if excess <= 0 then break end
      at = at + (read_entry(bytes, position))
    end
    wait = at + W - now
  end
  return false, next_state, newest + W - (newest + W) % STEP, nil, reply_state(wait)
end
