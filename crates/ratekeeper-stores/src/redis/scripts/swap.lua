-- Replaces states that the caller has computed: all of them or, if one has changed meanwhile, none.
-- Returns whether it did.
--
-- ARGV  for each key: the state as it was ('' for none), the state to be ('' for none), the command
--       that says how long to keep it ('PX' or 'PXAT') and its milliseconds
for i = 1, #KEYS do
  if (redis.call('GET', KEYS[i]) or '') ~= ARGV[4 * i - 3] then return 0 end
end
for i = 1, #KEYS do
  local was, state, command, ms = unpack(ARGV, 4 * i - 3, 4 * i)
  if state == '' then
    redis.call('DEL', KEYS[i])
  elseif state ~= was then
    redis.call('SET', KEYS[i], state, command, ms)
  end
end
return 1
