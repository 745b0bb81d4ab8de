-- Record that a tick is being run, unless it or a later one already was.
--
-- KEYS  root
-- ARGV  name, number
-- Reply 1 or 0

local last = tonumber(redis.call('HGET', root .. ':ticks', ARGV[1]))
if last and tonumber(ARGV[2]) <= last then
    return 0
end
redis.call('HDEL', root .. ':ticks', ARGV[1]) -- first: frees memory, so a server that is out of it accepts the write
redis.call('HSET', root .. ':ticks', ARGV[1], ARGV[2])
return 1
