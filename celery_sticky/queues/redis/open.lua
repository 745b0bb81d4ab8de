-- Set the fence of one slot queue to a tenure and put what is in flight back where it came from.
--
-- KEYS  queue
-- ARGV  separator, epoch, incarnation, open count, then the fields of the deliveries that stay in flight
-- Reply {1} and which of these fields were found, or {0, epoch, incarnation} of the fence that refuses.

local queue, separator = KEYS[1], ARGV[1]
local epoch, incarnation, count = ARGV[2], ARGV[3], ARGV[4]
local fence_key, flight_key = queue .. ':fence', queue .. ':flight'

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

local fence = redis.call('HMGET', fence_key, 'epoch', 'incarnation', 'count')
if fence[1] and refused(fence) then
    return {0, tonumber(fence[1]), fence[2]}
end

-- A server that is out of memory lets a script grow nothing until the script has removed something.
redis.call('HDEL', fence_key, 'epoch', 'incarnation', 'count', 'marks', 'deferred')
redis.call('HSET', fence_key, 'epoch', epoch, 'incarnation', incarnation, 'count', count)

local keep = {}
for i = 5, #ARGV do
    keep[ARGV[i]] = true
end
local values, fields, reply = {}, {}, {1}
local flight = redis.call('HGETALL', flight_key)
for i = 1, #flight, 2 do
    if keep[flight[i]] then
        reply[#reply + 1] = flight[i]
    else
        fields[#fields + 1] = flight[i]
        values[flight[i]] = flight[i + 1]
    end
end

-- The right end of a list is its front: push the last fetched first, so that the first fetched comes to stand in front.
table.sort(fields, function(a, b) return number_of(a) > number_of(b) end)
local suspects = fence[2] and fence[2] ~= incarnation
for _, field in ipairs(fields) do
    local priority, body = string.match(values[field], '^(%d+):(.*)$')
    redis.call('HDEL', flight_key, field)
    redis.call('RPUSH', priority == '0' and queue or queue .. separator .. priority, body)
    if suspects then
        redis.call('HSETNX', queue .. ':marks', redis.sha1hex(body), 0)
    end
end

-- Spares each fetch a look into what hardly any slot has; `fetch` keeps these up.
for _, name in ipairs({'marks', 'deferred'}) do
    if redis.call('EXISTS', queue .. ':' .. name) == 1 then
        redis.call('HSET', fence_key, name, 1)
    end
end
return reply
