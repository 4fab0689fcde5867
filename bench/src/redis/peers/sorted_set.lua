-- A sliding log as people write it: a sorted set of moments.
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local count = redis.call('ZCARD', KEYS[1])
if count >= limit then return { 0, 0 } end
local moment = string.format('%.0f', now)
redis.call('ZADD', KEYS[1], moment, moment .. '-' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000))
return { 1, limit - count - 1 }
