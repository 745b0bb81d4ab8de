-- Set the fence of one slot queue to a tenure and put what is in flight back where it came from, a bounded part at a time.
--
-- KEYS  queue
-- ARGV  separator, priority steps (JSON list of strings), epoch, incarnation, open count, then the fields of the
--       deliveries that stay in flight
-- Reply {1} and which of these fields were found; {2}: not all is back, run it again, nothing is fetched before;
--       {0, epoch, incarnation} of the fence that refuses; {3, error}

write_first()

local queue, separator, steps = KEYS[1], ARGV[1], cjson.decode(ARGV[2])
local epoch, incarnation, count = ARGV[3], ARGV[4], ARGV[5]
local fence_key, flight_key = queue .. ':fence', queue .. ':flight'
local MOST = 500

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
    -- Those of another incarnation may have been started. An opening that was broken off leaves the rest to the next.
    local suspects = fence[5] == 'suspects' or (fence[2] and fence[2] ~= incarnation)
    -- A server that has lost its newest data counts from a lower number again. What it delivers from now on must come
    -- after what runs since before that.
    local seq = tonumber(fence[4]) or 0
    for i = 6, #ARGV do
        seq = math.max(seq, number_of(ARGV[i]))
    end
    redis.call('HDEL', fence_key, 'marks', 'deferred', 'big')
    redis.call('HSET', fence_key, 'epoch', epoch, 'incarnation', incarnation, 'count', count, 'seq', seq,
        'opening', suspects and 'suspects' or 'plain')
    return suspects
end

-- Return the fields of what goes back, the last fetched first, and of what stays.
local function in_flight()
    local keep, kept, numbers, fields = {}, {}, {}, {}
    for i = 6, #ARGV do
        keep[ARGV[i]] = true
    end
    for _, field in ipairs(redis.call('HKEYS', flight_key)) do
        local number = number_of(field)
        if keep[field] then
            kept[#kept + 1] = field
        elseif fields[number] then
            fields[number][#fields[number] + 1] = field
        else
            fields[number] = {field}
            numbers[#numbers + 1] = number
        end
    end
    table.sort(numbers)
    local back = {}
    for i = #numbers, math.max(1, #numbers - MOST), -1 do
        for _, field in ipairs(fields[numbers[i]]) do
            back[#back + 1] = field
        end
    end
    return back, kept
end

-- The right end of a list is its front: pushed last, the first fetched comes to stand in front.
local function put_back(field, suspects, ahead)
    local priority, body = string.match(redis.call('HGET', flight_key, field), '^(%d+):(.*)$')
    redis.call('RPUSH', list_of(queue, separator, priority) .. ahead, body)
    if suspects then
        redis.call('HSETNX', queue .. ':marks', redis.sha1hex(body), 0)
    end
    redis.call('HDEL', flight_key, field)
end

local function open()
    local fence = redis.call('HMGET', fence_key, 'epoch', 'incarnation', 'count', 'seq', 'opening', 'cut')
    local going_on = fence[5] and fence[1] == epoch and fence[2] == incarnation and fence[3] == count
    if fence[1] and not going_on and refused(fence) then
        return {0, tonumber(fence[1]), fence[2]}
    end
    local suspects = fence[5] == 'suspects'
    if not going_on then
        suspects = set_fence(fence)
    end
    redis.call('HLEN', queue .. ':marks')
    local back, kept = in_flight()
    local bytes, ahead = 0, fence[6] and ':ahead' or ''
    for i, field in ipairs(back) do
        bytes = bytes + redis.call('HSTRLEN', flight_key, field) * (suspects and 2 or 1)
        if i > MOST or (bytes > BUDGET and i > 1) then
            return {2}
        end
        put_back(field, suspects, ahead)
    end
    redis.call('HDEL', fence_key, 'opening')
    -- Spares each fetch a look into what hardly any slot has; `fetch` keeps these up.
    for _, name in ipairs({'marks', 'deferred', 'big'}) do
        if redis.call('EXISTS', queue .. ':' .. name) == 1 then
            redis.call('HSET', fence_key, name, 1)
        end
    end
    return {1, unpack(kept)}
end

local done, reply = pcall(open)
return done and reply or {3, explained(reply, queue, separator, steps)}
