-- How much stands in some slot queues.
--
-- KEYS  the queues
-- ARGV  separator, priority steps (JSON list of strings)
-- Reply for each queue, flat: waiting, deferred, in flight, the message that is next (nil: none)

local separator, steps = ARGV[1], cjson.decode(ARGV[2])
local reply = {}
for _, queue in ipairs(KEYS) do
    local waiting, oldest = 0, false
    for _, priority in ipairs(steps) do
        local list = priority == '0' and queue or queue .. separator .. priority
        waiting = waiting + redis.call('LLEN', list)
        oldest = oldest or redis.call('LINDEX', list, -1)
    end
    reply[#reply + 1] = waiting
    reply[#reply + 1] = redis.call('ZCARD', queue .. ':deferred')
    reply[#reply + 1] = redis.call('HLEN', queue .. ':flight')
    reply[#reply + 1] = oldest
end
return reply
