-- Announces that a node is alive. Returns how many are.
--
-- KEYS[1]  the nodes, by the millisecond until which they count
-- ARGV     the node, and how long it counts without another announcement, in milliseconds
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local node, lives_ms = ARGV[1], tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if lives_ms > 0 then
  redis.call('ZADD', KEYS[1], now + lives_ms, node)
  if redis.call('PTTL', KEYS[1]) < lives_ms then redis.call('PEXPIRE', KEYS[1], lives_ms) end
else
  redis.call('ZREM', KEYS[1], node)
end
return redis.call('ZCARD', KEYS[1])
