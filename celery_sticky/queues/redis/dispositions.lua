-- Part of fetch: the effect of a disposition on its delivery.

local DISPOSITION_COST = 512 -- cost of a disposition without a body, in bytes read

-- A new body that is too big for a script was uploaded before; it expires unless it is accepted here.
local function accept_body(body, queue)
    local key = referred(body)
    if key then
        if redis.call('EXISTS', key) == 0 then
            error({err = 'the uploaded body has expired'})
        end
        redis.call('PERSIST', key)
        register_body(queue, key)
    end
end

local function drop_body(queue, key)
    redis.call('UNLINK', key)
    redis.call('SREM', queue .. ':big', key)
end

local function defer(queue, field, value, at)
    local given = ARGV[at + 2] ~= ''
    local body = given and ARGV[at + 2] or body_of(value)
    local priority = string.match(value, '^%d+')
    if given then
        accept_body(body, queue)
    end
    -- The number makes the member unique and orders messages that are due at the same time.
    local member = string.format('%016d:%s:', tonumber(string.match(field, '^%d+')), priority) .. body
    redis.call('ZADD', queue .. ':deferred', ARGV[at + 1], member)
    return given
end

local function bury(queue, value, at)
    local dead, id = ARGV[at + 1], ARGV[at + 2]
    local last = redis.call('ZREVRANGE', dead .. ':order', 0, 0, 'WITHSCORES')
    redis.call('HSET', dead, id, value)
    redis.call('HSET', dead .. ':info', id, ARGV[at + 3])
    redis.call('ZADD', dead .. ':order', (tonumber(last[2]) or 0) + 1, id)
    local key = referred(body_of(value))
    if key then
        redis.call('SREM', queue .. ':big', key)
    end
end

local function move(queue, value, at)
    local to, given = ARGV[at + 1], ARGV[at + 2] ~= ''
    local body = given and ARGV[at + 2] or body_of(value)
    if given then
        accept_body(body, to)
    elseif referred(body) then
        register_body(to, referred(body))
        redis.call('SREM', queue .. ':big', referred(body))
    end
    redis.call('LPUSH', list(to, string.match(value, '^%d+')), body)
    return given
end

-- Setting the count, instead of adding to it, makes a repeated request harmless when the first answer was lost.
local function count_start(queue, act, value, starts)
    local marks, body = queue .. ':marks', digest_of(body_of(value))
    local counted = tonumber(redis.call('HGET', marks, body)) or 0
    if act == 'm' and counted < starts then
        counted = starts
        redis.call('HSET', marks, body, counted)
    elseif act == 'u' and counted == starts and starts > 0 then
        redis.call('HSET', marks, body, starts - 1)
    end
    return counted
end

local function settle(queue, act, field, at, has)
    local flight = queue .. ':flight'
    local value = redis.call('HGET', flight, field)
    if not value then
        return 0
    end
    spent = spent + 2 * #value
    if act == 'm' then
        note(queue, has, 'marks')
        return count_start(queue, act, value, tonumber(ARGV[at + 1]))
    elseif act == 'u' then
        if has.marks then
            count_start(queue, act, value, tonumber(ARGV[at + 1]))
        end
        return 1
    end
    local replaced = act == 'a'
    if act == 'd' then
        note(queue, has, 'deferred')
        replaced = defer(queue, field, value, at)
    elseif act == 'b' then
        bury(queue, value, at)
    elseif act == 'f' then
        replaced = move(queue, value, at)
    end
    redis.call('HDEL', flight, field)
    if has.marks then
        redis.call('HDEL', queue .. ':marks', digest_of(body_of(value)))
    end
    local key = has.big and replaced and referred(body_of(value))
    if key then
        drop_body(queue, key)
    end
    return 1
end

local function settle_safely(queue, act, at, has)
    if spent > BUDGET then
        return -1
    end
    spent = spent + DISPOSITION_COST
    local done, answer = pcall(settle, queue, act, string.sub(ARGV[at], 2), at, has)
    if done then
        return answer
    end
    local others = {}
    if act == 'b' then
        local dead = ARGV[at + 1]
        others = {{dead, 'hash'}, {dead .. ':info', 'hash'}, {dead .. ':order', 'zset'}}
    elseif act == 'f' then
        for _, priority in ipairs(steps) do
            others[#others + 1] = {list(ARGV[at + 1], priority), 'list'}
        end
    end
    return explained(answer, queue, separator, steps, others)
end
