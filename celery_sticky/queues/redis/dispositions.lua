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

-- Return the ledger and the run, the last two arguments of a disposition that concerns a run, or nil.
local function run_of(act, at)
    if act == 'c' or act == 'g' or act ~= string.lower(act) then
        local last = at + arguments[act] - 1
        return ARGV[last - 1], ARGV[last]
    end
end

-- Return which earlier deliveries may hold the claim that is given back: it stands before the ledger.
local function earlier_of(act, at)
    return ARGV[at + arguments[act] - 3]
end

-- Claim a run or give it back: the delivery stays in flight.
local function settle_run(queue, act, field, at)
    if redis.call('HEXISTS', queue .. ':flight', field) == 0 then
        return 0
    end
    local ledger, run = run_of(act, at)
    if act == 'c' then
        return claim(ledger, run, field, ARGV[at + 1] == '1')
    end
    give_back(ledger, run, field, earlier_of(act, at))
    return 1
end

-- Settle a delivery, and record in the same step what that means for its run.
local function settle_with_run(queue, act, field, at, has)
    local ledger, run = run_of(act, at)
    touch_ledger(ledger)
    local plain = act == 'A' and not has.more
    local answer = plain and redis.call('HDEL', has.flight, field) or settle(queue, string.lower(act), field, at, has)
    if answer == 1 and act == 'F' then
        give_back(ledger, run, field, earlier_of(act, at))
    elseif answer == 1 then
        finish(ledger, run, now)
    end
    return answer
end

local function settler(act, ledger)
    if not ledger then
        return settle
    end
    return (act == 'c' or act == 'g') and settle_run or settle_with_run
end

local function settle_safely(queue, act, at, has)
    if spent > BUDGET then
        return -1
    end
    spent = spent + DISPOSITION_COST
    local ledger = run_of(act, at)
    local done, answer = pcall(settler(act, ledger), queue, act, string.sub(ARGV[at], 2), at, has)
    if done then
        return answer
    end
    local others = ledger and ledger_keys(ledger) or {}
    act = string.lower(act)
    if act == 'b' then
        local dead = ARGV[at + 1]
        others[#others + 1] = {dead, 'hash'}
        others[#others + 1] = {dead .. ':info', 'hash'}
        others[#others + 1] = {dead .. ':order', 'zset'}
    elseif act == 'f' then
        for _, priority in ipairs(steps) do
            others[#others + 1] = {list(ARGV[at + 1], priority), 'list'}
        end
    end
    return explained(answer, queue, separator, steps, others)
end
