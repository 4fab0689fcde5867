-- A token bucket as people write it: a hash of two fields.
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local fields = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local tokens, ts = tonumber(fields[1]) or burst, tonumber(fields[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - ts) * rate)
local allowed = 0
if tokens >= cost then
  tokens, allowed = tokens - cost, 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) * 2)
return { allowed, math.floor(tokens) }
