-- Acquires, renews or releases a permit. Permits that were not renewed in time are free again.
--
-- KEYS[1]  the permits that are held, by the millisecond until which they are
-- ARGV     the permit; how many there are; how long it is held without being renewed, in
--          milliseconds (0 releases it); 1 if it is held already and to be renewed
--
-- Returns whether it is held now (for a release: whether it was), how many are held, and in how many
-- milliseconds the next one expires.
local permit, max, lives_ms, is_held = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local held = redis.call('ZCARD', KEYS[1])
if lives_ms == 0 then
  local released = redis.call('ZREM', KEYS[1], permit)
  return { released, held - released, 0 }
end
-- An expired permit is only renewed if one is free: another holder may have got it.
if is_held and not redis.call('ZSCORE', KEYS[1], permit) then is_held = false end
if not is_held then
  if held >= max then
    local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    return { 0, held, first[2] and first[2] - now or 0 }
  end
  held = held + 1
end
redis.call('ZADD', KEYS[1], now + lives_ms, permit)
-- Others may be held for longer.
if redis.call('PTTL', KEYS[1]) < lives_ms then redis.call('PEXPIRE', KEYS[1], lives_ms) end
return { 1, held, 0 }
