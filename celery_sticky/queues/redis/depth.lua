-- How much stands in some slot queues. No body is read here: it may be big, and Lua copies it several times.
--
-- KEYS  the queues
-- ARGV  separator, priority steps (JSON list of strings), bytes of a message up to which it may be read for its age
-- Reply for each queue, flat: waiting, deferred, in flight, the list whose front is next ('': none, or it may be big)

local separator, steps, small = ARGV[1], cjson.decode(ARGV[2]), tonumber(ARGV[3])
local SAMPLES = 5

local function is_small(list, length)
    local told, bytes = pcall(redis.call, 'MEMORY', 'USAGE', list, 'SAMPLES', SAMPLES)
    return told and type(bytes) == 'number' and bytes / length <= small
end

local reply = {}
for _, queue in ipairs(KEYS) do
    local waiting, front, in_front = 0, nil, 0
    for _, priority in ipairs(steps) do
        local list = priority == '0' and queue or queue .. separator .. priority
        local length = redis.call('LLEN', list)
        if length > 0 and not front then
            front, in_front = list, length
        end
        waiting = waiting + length
    end
    reply[#reply + 1] = waiting
    reply[#reply + 1] = redis.call('ZCARD', queue .. ':deferred')
    reply[#reply + 1] = redis.call('HLEN', queue .. ':flight')
    reply[#reply + 1] = front and is_small(front, in_front) and front or ''
end
return reply
