-- GCRA as people write it: one moment, as text.
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + interval
if tat - now > tolerance then return { 0, 0 } end
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000))
return { 1, math.floor((tolerance - (tat - now)) / interval) }
