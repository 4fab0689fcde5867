-- Runs a script only if a key exists, and deletes that key with what the script writes: so the script
-- has its effect once, however often it is called. Returns nil if the key does not exist.
--
-- KEYS[#KEYS]  the guard; the keys of the script are before it
local guard = table.remove(KEYS)
if not redis.call('GET', guard) then return nil end
local function guarded()
