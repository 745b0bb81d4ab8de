-- Count the messages of some slot queues. No body is read here: it may be big, and Lua copies it several times.
--
-- KEYS  the queues
-- ARGV  separator, priority steps (JSON list of strings), most bytes of a message that may be read for its age
-- Reply for each queue, flat: waiting, deferred, in flight, the list that holds the next message ('': none, or it may
--       be big), '' or why the queue cannot be counted

-- include prelude

local separator, steps, small = ARGV[1], cjson.decode(ARGV[2]), tonumber(ARGV[3])
local SAMPLES = 5

local function is_small(list, length)
    local told, bytes = pcall(redis.call, 'MEMORY', 'USAGE', list, 'SAMPLES', SAMPLES)
    return told and type(bytes) == 'number' and bytes / length <= small
end

-- Most queues are empty: one command finds out, instead of one for each list.
local function is_empty(queue)
    local keys = {queue .. ':deferred', queue .. ':flight'}
    for _, priority in ipairs(steps) do
        local list = list_of(queue, separator, priority)
        keys[#keys + 1] = list
        keys[#keys + 1] = list .. ':ahead'
    end
    return redis.call('EXISTS', unpack(keys)) == 0
end

local function depth(queue)
    if is_empty(queue) then
        return {0, 0, 0, ''}
    end
    local waiting, front, in_front = 0, nil, 0
    for _, priority in ipairs(steps) do
        local list = list_of(queue, separator, priority)
        for _, name in ipairs({list .. ':ahead', list}) do
            local length = redis.call('LLEN', name)
            if length > 0 and not front then
                front, in_front = name, length
            end
            waiting = waiting + length
        end
    end
    local deferred, in_flight = redis.call('ZCARD', queue .. ':deferred'), redis.call('HLEN', queue .. ':flight')
    return {waiting, deferred, in_flight, front and is_small(front, in_front) and front or ''}
end

local reply = {}
for _, queue in ipairs(KEYS) do
    local done, found = pcall(depth, queue)
    for i = 1, 4 do
        reply[#reply + 1] = done and found[i] or 0
    end
    reply[#reply + 1] = done and '' or explained(found, queue, separator, steps)
end
return reply
