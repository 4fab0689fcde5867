-- A sliding counter as people write it: a key for each window.
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local number = math.floor(now / window)
local key = KEYS[1] .. ':' .. number
local count = tonumber(redis.call('GET', key) or 0)
local previous = tonumber(redis.call('GET', KEYS[1] .. ':' .. (number - 1)) or 0)
local used = previous * (1 - now % window / window) + count
if used >= limit then return { 0, 0 } end
if redis.call('INCR', key) == 1 then redis.call('PEXPIRE', key, window * 2) end
return { 1, math.floor(limit - used) - 1 }
