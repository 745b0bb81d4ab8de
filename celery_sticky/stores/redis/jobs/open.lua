-- Fence the records of a slot for an epoch.
--
-- KEYS  root
-- ARGV  slot, epoch
-- Reply nil, or the higher epoch that refuses it

local slot, epoch = ARGV[1], ARGV[2]
if vacant(slot) then
    return false
end
local fence = redis.call('HGET', root .. ':fences', slot)
if fence and tonumber(fence) > tonumber(epoch) then
    return fence
end
-- A server that is out of memory refuses writes that grow data until the script has removed something.
redis.call('HDEL', root .. ':fences', slot)
redis.call('HSET', root .. ':fences', slot, epoch)
return false
