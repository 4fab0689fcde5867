end
local reply = guarded()
-- 2: the script has written nothing, because a state was written under another limit.
if string.byte(reply) ~= 2 then redis.call('DEL', guard) end
return reply
