-- Note that a tick is being run, if neither it nor a later one was before.
--
-- KEYS  root
-- ARGV  name, number
-- Reply 1 or 0

local last = tonumber(redis.call('HGET', root .. ':ticks', ARGV[1]))
if last and tonumber(ARGV[2]) <= last then
    return 0
end
redis.call('HDEL', root .. ':ticks', ARGV[1]) -- first: a server that is out of memory then takes what follows
redis.call('HSET', root .. ':ticks', ARGV[1], ARGV[2])
return 1
