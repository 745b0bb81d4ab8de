-- Set the fence of one slot queue to a tenure and put deliveries in flight back into their lists, in bounded parts.
--
-- KEYS  queue
-- ARGV  separator, priority steps (JSON list of strings), epoch, incarnation, open count, number of deliveries that
--       stay in flight and their fields, then the fields of the deliveries to put back next, last fetched first
-- Reply {1, list} and the fields to keep that were found; the list has a priority that is no longer a step
--       ('': there is none): such lists are fetched from too;
--       {2, n}: not all are back, so nothing can be fetched yet; the first n of those named are: name the others;
--       {0, epoch, incarnation} of the fence that refuses; {3, error}

-- include prelude

write_first()

local queue, separator, steps = KEYS[1], ARGV[1], cjson.decode(ARGV[2])
local epoch, incarnation, count = ARGV[3], ARGV[4], ARGV[5]
local fence_key, flight_key = queue .. ':fence', queue .. ':flight'
local STAY = 6 + tonumber(ARGV[6])
local FEW = 256 -- up to this many deliveries in flight are sorted here

local function refused(fence)
    local held = tonumber(fence[1]) or -1
    if held ~= tonumber(epoch) then
        return held > tonumber(epoch)
    end
    return fence[2] ~= incarnation or tonumber(fence[3]) >= tonumber(count)
end

local function number_of(field)
    return tonumber(string.match(field, '^%d+'))
end

local function set_fence(fence)
    -- Deliveries to another incarnation may have been started. An interrupted opening leaves this note to the next one.
    local suspects = fence[4] == 'suspects' or (fence[2] and fence[2] ~= incarnation)
    redis.call('HDEL', fence_key, 'marks', 'deferred', 'big', 'former')
    set_note(fence_key, 'opening', suspects and 'suspects' or 'plain')
    redis.call('HSET', fence_key, 'epoch', epoch, 'incarnation', incarnation, 'count', count)
    return suspects
end

-- Return the fields to put back, last fetched first, and the fields to keep.
local function in_flight()
    local keep, kept, back = {}, {}, {}
    for i = 7, STAY do
        keep[ARGV[i]] = true
    end
    for _, field in ipairs(redis.call('HKEYS', flight_key)) do
        local to = keep[field] and kept or back
        to[#to + 1] = field
    end
    table.sort(back, function(a, b) return number_of(a) > number_of(b) end)
    return back, kept
end

-- The right end of a list is its front: the first fetched is pushed last, and so becomes the first again.
local function put_back(field, suspects, ahead)
    local value = redis.call('HGET', flight_key, field)
    if not value then
        return
    end
    local priority, body = string.match(value, '^(%d+):(.*)$')
    redis.call('RPUSH', list_of(queue, separator, priority) .. ahead, body)
    if suspects then
        redis.call('HSETNX', queue .. ':marks', digest_of(body), 0)
    end
    redis.call('HDEL', flight_key, field)
end

-- A change of `priority_steps` leaves messages in lists that are not among the new steps.
local function note_former_steps()
    local known, former, found = {}, {}, ''
    for _, priority in ipairs(steps) do
        known[priority] = true
    end
    for priority = 1, 9 do
        local list = list_of(queue, separator, tostring(priority))
        if not known[tostring(priority)] and redis.call('EXISTS', list, list .. ':ahead') > 0 then
            former[#former + 1], found = tostring(priority), list
        end
    end
    if #former > 0 then
        set_note(fence_key, 'former', cjson.encode(former))
    end
    return found
end

local function open()
    local fence = redis.call('HMGET', fence_key, 'epoch', 'incarnation', 'count', 'opening', 'cut')
    local going_on = fence[4] and fence[1] == epoch and fence[2] == incarnation and fence[3] == count
    if fence[1] and not going_on and refused(fence) then
        return {0, tonumber(fence[1]), fence[2]}
    end
    local suspects = fence[4] == 'suspects'
    if not going_on then
        suspects = set_fence(fence)
    end
    redis.call('HLEN', queue .. ':marks') -- fail on a wrong type before anything has moved
    local bytes, ahead = 0, fence[5] and ':ahead' or ''
    local function put_back_all(fields)
        for i, field in ipairs(fields) do
            bytes = bytes + redis.call('HSTRLEN', flight_key, field)
            if bytes > BUDGET and i > 1 then
                return i - 1
            end
            put_back(field, suspects, ahead)
        end
        return #fields
    end
    if #ARGV > STAY then
        return {2, put_back_all({unpack(ARGV, STAY + 1)})}
    elseif redis.call('HLEN', flight_key) > FEW + ARGV[6] then
        return {2, 0}
    end
    local back, kept = in_flight()
    if put_back_all(back) < #back then
        return {2, 0}
    end
    redis.call('HDEL', fence_key, 'opening')
    -- These notes spare each fetch from checking rare keys, and `more` from reading the notes; `fetch` maintains them.
    for _, name in ipairs({'marks', 'deferred', 'big'}) do
        if redis.call('EXISTS', queue .. ':' .. name) == 1 then
            set_note(fence_key, name, 1)
        end
    end
    local former = note_former_steps()
    note_less(fence_key)
    return {1, former, unpack(kept)}
end

local done, reply = pcall(open)
return done and reply or {3, explained(reply, queue, separator, steps)}
