-- Settle verdicts and move messages into flight, for any number of tenures at once.
--
-- KEYS  the queue of each tenure
-- ARGV  now, separator, priority steps (JSON list of strings), then for each tenure:
--       epoch, incarnation, open count, limit (-1: nothing wanted), number of verdicts, and for each verdict
--         'a' .. field                              ack
--         'm' .. field, starts                      mark
--         'u' .. field, starts                      unmark
--         'd' .. field, due, body ('': unchanged)   defer
--         'b' .. field, dead key, dead id, info     bury
--         'f' .. field, queue, body ('': unchanged) move there
--       where a field names a delivery: its number, ':', and the incarnation and open count it was fetched under
-- Reply for each tenure, flat: 0 if the fence is not this tenure, else 1 and
--       for each verdict: 0 refused, else 1 (a mark: starts marked so far)
--       if wanted: 1 if the queue is empty now else 0, when the next deferred message comes due ('': there is none),
--         number of messages, number of the first, each message as '<priority>:<body>' or '<priority>,<marks>:<body>'

local now, separator, steps = ARGV[1], ARGV[2], cjson.decode(ARGV[3])
local CHUNK = 500 -- Lua cannot unpack many thousand arguments at once
local VERDICT_ARGS = {a = 1, m = 2, u = 2, d = 3, b = 4, f = 3}

local function list_of(queue, priority)
    return priority == '0' and queue or queue .. separator .. priority
end

local function body_of(value)
    return string.sub(value, string.find(value, ':', 1, true) + 1)
end

local function forget_marks(queue, value)
    redis.call('HDEL', queue .. ':marks', redis.sha1hex(body_of(value)))
end

-- The fence notes whether the slot has marks or deferred messages (`has`): most have not, and need no further look.
local function note(queue, has, name)
    if not has[name] then
        redis.call('HSET', queue .. ':fence', name, 1)
        has[name] = true
    end
end

local function defer(queue, field, value, at)
    local body = ARGV[at + 2] ~= '' and ARGV[at + 2] or body_of(value)
    local priority = string.match(value, '^%d+')
    -- The number makes the member unique and orders what comes due at the same time.
    local member = string.format('%016d:%s:', tonumber(string.match(field, '^%d+')), priority) .. body
    redis.call('ZADD', queue .. ':deferred', ARGV[at + 1], member)
end

local function bury(value, at)
    local dead, id = ARGV[at + 1], ARGV[at + 2]
    local last = redis.call('ZREVRANGE', dead .. ':order', 0, 0, 'WITHSCORES')
    redis.call('HSET', dead, id, value)
    redis.call('HSET', dead .. ':info', id, ARGV[at + 3])
    redis.call('ZADD', dead .. ':order', (tonumber(last[2]) or 0) + 1, id)
end

local function move(value, at)
    local body = ARGV[at + 2] ~= '' and ARGV[at + 2] or body_of(value)
    redis.call('LPUSH', list_of(ARGV[at + 1], string.match(value, '^%d+')), body)
end

-- Said again, because the first answer was lost, a mark or its taking back changes nothing.
local function count_start(queue, act, value, starts)
    local marks, body = queue .. ':marks', redis.sha1hex(body_of(value))
    local counted = tonumber(redis.call('HGET', marks, body)) or 0
    if act == 'm' and counted < starts then
        counted = starts
        redis.call('HSET', marks, body, counted)
    elseif act == 'u' and counted == starts and starts > 0 then
        redis.call('HSET', marks, body, starts - 1)
    end
    return counted
end

local function settle(queue, at, has)
    local act, field = string.sub(ARGV[at], 1, 1), string.sub(ARGV[at], 2)
    local flight = queue .. ':flight'
    if act == 'a' and not has.marks then
        return redis.call('HDEL', flight, field)
    end
    local value = redis.call('HGET', flight, field)
    if not value then
        return 0
    end
    if act == 'm' then
        note(queue, has, 'marks')
        return count_start(queue, act, value, tonumber(ARGV[at + 1]))
    elseif act == 'u' then
        if has.marks then
            count_start(queue, act, value, tonumber(ARGV[at + 1]))
        end
        return 1
    elseif act == 'd' then
        note(queue, has, 'deferred')
        defer(queue, field, value, at)
    elseif act == 'b' then
        bury(value, at)
    elseif act == 'f' then
        move(value, at)
    end
    redis.call('HDEL', flight, field)
    if has.marks then
        forget_marks(queue, value)
    end
    return 1
end

local function wake_deferred(queue)
    local key = queue .. ':deferred'
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[1] and tonumber(first[2]) > tonumber(now) then
        return first[2]
    end
    repeat
        local members = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, CHUNK)
        if #members > 0 then
            -- Remove first: a server that is out of memory then lets the script push.
            redis.call('ZREM', key, unpack(members))
        end
        for _, member in ipairs(members) do
            local priority, body = string.match(member, '^%d+:(%d+):(.*)$')
            redis.call('LPUSH', list_of(queue, priority), body)
        end
    until #members < CHUNK
    local due = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if not due then
        redis.call('HDEL', queue .. ':fence', 'deferred')
    end
    return due or ''
end

local function pop(queue, limit)
    local values = {}
    for _, priority in ipairs(steps) do
        if #values >= limit then
            break
        end
        local bodies = redis.call('RPOP', list_of(queue, priority), limit - #values)
        for _, body in ipairs(bodies or {}) do
            values[#values + 1] = priority .. ':' .. body
        end
    end
    return values
end

local function put_in_flight(queue, values, opening)
    local first = redis.call('HINCRBY', queue .. ':fence', 'seq', #values) - #values + 1
    for from = 1, #values, CHUNK do
        local pairs_ = {}
        for i = from, math.min(from + CHUNK - 1, #values) do
            pairs_[#pairs_ + 1] = (first + i - 1) .. ':' .. opening
            pairs_[#pairs_ + 1] = values[i]
        end
        redis.call('HSET', queue .. ':flight', unpack(pairs_))
    end
    return first
end

local function is_empty(queue)
    for _, priority in ipairs(steps) do
        if redis.call('EXISTS', list_of(queue, priority)) == 1 then
            return false
        end
    end
    return true
end

local function with_marks(queue, value)
    local body = body_of(value)
    local marks = redis.call('HGET', queue .. ':marks', redis.sha1hex(body))
    return marks and string.match(value, '^%d+') .. ',' .. marks .. ':' .. body or value
end

-- Marks of messages that left by another way (a purge) would stay for ever.
local function sweep_marks(queue)
    if redis.call('EXISTS', queue .. ':flight', queue .. ':deferred') == 0 then
        redis.call('DEL', queue .. ':marks')
        redis.call('HDEL', queue .. ':fence', 'marks')
    end
end

local reply = {}
local function say(item)
    reply[#reply + 1] = item
end

local function take(queue, limit, has, opening)
    local due = has.deferred and wake_deferred(queue) or ''
    local values = pop(queue, limit)
    -- A list read by a script is watched by some servers for client-side caching: look only where it cannot be known.
    local empty = #values < limit or is_empty(queue)
    say(empty and 1 or 0)
    say(due)
    say(#values)
    if #values > 0 then
        say(put_in_flight(queue, values, opening))
    end
    for _, value in ipairs(values) do
        say(has.marks and with_marks(queue, value) or value)
    end
    if has.marks and empty then
        sweep_marks(queue)
    end
end

local at = 4
for _, queue in ipairs(KEYS) do
    local fence = redis.call('HMGET', queue .. ':fence', 'epoch', 'incarnation', 'count', 'marks', 'deferred')
    local held = fence[1] == ARGV[at] and fence[2] == ARGV[at + 1] and fence[3] == ARGV[at + 2]
    local has = {marks = fence[4], deferred = fence[5]}
    local opening = ARGV[at + 1] .. '.' .. ARGV[at + 2]
    local limit, verdicts = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    at = at + 5
    say(held and 1 or 0)
    for _ = 1, verdicts do
        if held then
            say(settle(queue, at, has))
        end
        at = at + VERDICT_ARGS[string.sub(ARGV[at], 1, 1)]
    end
    if held and limit >= 0 then
        take(queue, limit, has, opening)
    end
end
return reply
