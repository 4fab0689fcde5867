-- Acquires, renews or releases a permit. Permits that were not renewed in time are free again.
--
-- KEYS[1]  the permits that are held, by the millisecond until which they are
-- ARGV     the permit; how many there are, or nothing to renew it: then it is in flight, and held
--          whether one is free or not; how long it is held without being renewed, in milliseconds
--          (0 releases it)
--
-- Returns whether it is held now (for a renewal or a release: whether it was), how many are held, and in
-- how many milliseconds the next one expires.
local permit, max, lives_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local held = redis.call('ZCARD', KEYS[1])
if lives_ms == 0 then
  local released = redis.call('ZREM', KEYS[1], permit)
  return { released, held - released, 0 }
end
local was_held = redis.call('ZSCORE', KEYS[1], permit) and 1 or 0
if was_held == 0 then
  if max and held >= max then
    local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    return { 0, held, first[2] and first[2] - now or 0 }
  end
  held = held + 1
end
redis.call('ZADD', KEYS[1], now + lives_ms, permit)
-- Others may be held for longer.
if redis.call('PTTL', KEYS[1]) < lives_ms then redis.call('PEXPIRE', KEYS[1], lives_ms) end
return { max and 1 or was_held, held, 0 }
