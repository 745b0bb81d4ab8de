-- Stop a job.
--
-- KEYS  root
-- ARGV  channel, slot, name, key
-- Reply its id; nil: there is no such job

local channel, slot, name, key = unpack(ARGV)
local id = redis.call('HGET', slot_key(slot), place_of(name, key))
if not id then
    return false
end
stop(slot, id)
forget_vacant()
redis.call('PUBLISH', channel, slot)
return id
