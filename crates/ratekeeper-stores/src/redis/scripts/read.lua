-- Reads states, for what the caller computes. Returns the time and the states.
local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = string.format('%d', time[1] * 1000000 + time[2])
end
return { now, redis.call('MGET', unpack(KEYS)) }
