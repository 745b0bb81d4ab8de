-- Settle verdicts and move messages into flight, for any number of tenures at once, within a bounded time.
--
-- KEYS  the queue of each tenure
-- ARGV  now, separator, priority steps (JSON list of strings), number of this trip, then for each tenure:
--       epoch, incarnation, open count, limit (-1: nothing wanted), number of verdicts, and for each verdict
--         'a' .. field                              ack
--         'm' .. field, starts                      mark
--         'u' .. field, starts                      unmark
--         'd' .. field, due, body ('': unchanged)   defer
--         'b' .. field, dead key, dead id, info     bury
--         'f' .. field, queue, body ('': unchanged) move there
--       where a field names a delivery: its number, ':', and incarnation, open count and trip that it was fetched with
-- Reply for each tenure, flat: 0 if the fence is not this tenure, else 1 (an error as text: nothing more for this tenure)
--       for each verdict: 0 refused, else 1 (a mark: starts marked so far), -1 not now: say it again, or an error as text
--       if wanted: an error as text, or 1 if the queue is empty now else 0, when the next deferred message comes due
--         ('': there is none), the list in whose front stands a message too big for a script ('': none),
--         number of messages, number of the first, each message as '<priority>:<body>' or '<priority>,<marks>:<body>'

write_first()

local now, separator, steps = ARGV[1], ARGV[2], cjson.decode(ARGV[3])
local configured = steps
local CHUNK = 500 -- Lua cannot unpack many thousand arguments at once
local VERDICT_ARGS = {a = 1, m = 2, u = 2, d = 3, b = 4, f = 3}
local WAKE = 256 -- deferred messages that are woken by one request
local VERDICT_COST = 512 -- what a verdict without a body costs, in bytes read
local MESSAGE_COST = 1024 -- what a message costs beside its body
local SAMPLES = 128 -- nodes of a list that are weighed, the newest ones; of a list with fewer the weight is exact
local BULK = 2 * BUDGET -- bytes of a list up to which a part of it is popped at once, whatever the sizes in it
local LIGHT = 32768 -- bytes of an average message of a list that weighs more, up to which the next ones are looked at here
local PART = 8 -- messages of such a list that are looked at in one go

local spent, woken, brought = 0, 0, 0

local function list(queue, priority)
    return list_of(queue, separator, priority)
end

-- The fence notes what a slot may have (`has`): marks, deferred messages, big bodies. Most have none of it.
local function note(queue, has, name)
    if not has[name] then
        set_note(queue .. ':fence', name, 1)
        has[name], has.more = true, true
    end
end

-- -- Verdicts ------------------------------------------------------------------------------------

-- A new body too big for a script was uploaded before and expires unless it is accepted here.
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
    -- The number makes the member unique and orders what comes due at the same time.
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

-- Said again, because the first answer was lost, a mark or its taking back changes nothing.
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
    spent = spent + VERDICT_COST
    local done, answer = pcall(settle, queue, act, string.sub(ARGV[at], 2), at, has)
    if done then
        has.touched = true
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

-- -- Deferred messages ---------------------------------------------------------------------------

-- Messages may stand in lists of steps that were configured before: these are looked into as well.
local function steps_with(former)
    local every = cjson.decode(former)
    for _, priority in ipairs(configured) do
        every[#every + 1] = priority
    end
    table.sort(every, function(a, b) return tonumber(a) < tonumber(b) end)
    return every
end

-- A message that waited for its time has a priority that is no step any more: have its list looked into.
local function note_former(queue, has, priority)
    for _, step in ipairs(steps) do
        if step == priority then
            return
        end
    end
    local former = has.former and cjson.decode(has.former) or {}
    former[#former + 1] = priority
    has.former = cjson.encode(former)
    set_note(queue .. ':fence', 'former', has.former)
    has.more = true
    steps = steps_with(has.former)
end

-- Move up to so many members that are due to the back of their lists; return whether all that are due were moved.
local function wake_part(queue, from, to, ahead, has)
    local key = queue .. ':deferred'
    local step = 8 -- of unknown size
    while woken < WAKE and spent <= BUDGET do
        local members = redis.call('ZRANGEBYSCORE', key, from, to, 'LIMIT', 0, math.min(step, WAKE - woken))
        for _, member in ipairs(members) do
            local priority, body = string.match(member, '^%d+:(%d+):(.*)$')
            note_former(queue, has, priority)
            redis.call('LPUSH', list(queue, priority) .. ahead, body)
            spent = spent + #member
        end
        if #members > 0 then
            redis.call('ZREM', key, unpack(members))
        end
        woken = woken + #members
        if #members < step then
            break
        end
        step = step * 2
    end
    return redis.call('ZCOUNT', key, from, to) == 0
end

-- More has come due than one request may wake. What stands in the queue now goes before it, what is published from now on
-- goes after it: the lists are renamed, which costs nothing, and filled up from the deferred ones by the next requests.
local function cut(queue, has)
    for _, priority in ipairs(steps) do
        if redis.call('EXISTS', list(queue, priority)) == 1 then
            redis.call('RENAME', list(queue, priority), list(queue, priority) .. ':ahead')
        end
    end
    set_note(queue .. ':fence', 'cut', now)
    has.cut, has.more = now, true
end

local function end_cut(queue, has)
    for _, priority in ipairs(steps) do
        if redis.call('EXISTS', list(queue, priority) .. ':ahead') == 1 then
            return
        end
    end
    redis.call('HDEL', queue .. ':fence', 'cut')
    has.cut = nil
end

-- Return when the next one comes due ('': none is deferred). Those due before the cut come before what is in the lists.
local function wake_deferred(queue, has)
    local key = queue .. ':deferred'
    for _, priority in ipairs(steps) do
        redis.call('LLEN', list(queue, priority)) -- a list of a wrong type fails here, before anything has moved
    end
    if not has.cut and redis.call('ZCOUNT', key, '-inf', now) > WAKE then
        cut(queue, has)
    end
    has.whole = not has.cut or wake_part(queue, '-inf', has.cut, ':ahead', has)
    if has.whole then
        wake_part(queue, has.cut and '(' .. has.cut or '-inf', now, '', has)
    end
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if not first[1] then
        redis.call('HDEL', queue .. ':fence', 'deferred')
        return ''
    end
    spent = spent + #first[1]
    return first[2]
end

-- -- Messages ------------------------------------------------------------------------------------

local function weight_of(name)
    local bytes = redis.pcall('MEMORY', 'USAGE', name, 'SAMPLES', SAMPLES)
    return type(bytes) == 'number' and bytes
end

local function put(values, priority, body, has)
    local key = has.big and referred(body)
    values[#values + 1] = priority .. ':' .. body
    brought = brought + 1
    spent = spent + MESSAGE_COST + (key and weight_of(key) or #body)
end

-- Pop one part of a list after the other, as long as none is too big; return whether the slot has to stop here.
local function pop_parts(name, priority, limit, values, has, most)
    local part = 1 -- of unknown size
    while #values < limit do
        if brought > 0 and spent > BUDGET then
            return true
        end
        local bodies = redis.call('LRANGE', name, -math.min(part, limit - #values), -1)
        local popped = 0
        for i = #bodies, 1, -1 do
            if #bodies[i] > BIG then
                has.too_big = name
                note(has.queue, has, 'heavy')
                break
            end
            put(values, priority, bodies[i], has)
            popped = popped + 1
        end
        if popped > 0 then
            redis.call('LTRIM', name, 0, -popped - 1)
        end
        if popped < part then
            return has.too_big ~= nil
        end
        part = math.min(2 * part, most)
    end
    return false
end

-- Pop messages of one list; return whether the slot has to stop here: the budget is used up, or the next one is too big.
local function pop_list(name, priority, limit, values, has)
    local weight = redis.pcall('MEMORY', 'USAGE', name, 'SAMPLES', SAMPLES)
    if type(weight) == 'table' then -- refused by an access list: what is not known is taken for light
        return pop_parts(name, priority, limit, values, has, PART)
    elseif not weight then
        return false
    end
    if weight + spent <= BULK and not has.big then
        local head = priority .. ':'
        local most = math.min(limit - #values, CHUNK)
        local bodies = redis.call('RPOP', name, most)
        for _, body in ipairs(bodies) do
            values[#values + 1] = head .. body
            spent = spent + #body + MESSAGE_COST
            brought = brought + 1
        end
        return #bodies == CHUNK
    end
    local light = weight <= BULK or weight / redis.call('LLEN', name) <= LIGHT
    if weight > BULK and (has.heavy or not (light or has.light)) then
        has.too_big = name
        return true
    end
    return pop_parts(name, priority, limit, values, has, light and not has.big and PART or 1)
end

-- Whether any list but that of the first step may hold a message. Mostly none does.
local function has_others(queue, has)
    local others = {}
    for i = 2, #steps do
        others[i - 1] = list(queue, steps[i])
    end
    return has.cut or (others[1] and redis.call('EXISTS', unpack(others)) > 0)
end

-- Return what was popped, and whether every list was seen to its end.
local function pop(queue, limit, has)
    local values = {}
    for i, priority in ipairs(steps) do
        if i == 2 and not has_others(queue, has) then
            break
        end
        local name = list(queue, priority)
        local stop = has.cut and pop_list(name .. ':ahead', priority, limit, values, has)
        if not stop and #values < limit and has.whole then
            stop = pop_list(name, priority, limit, values, has)
        end
        if stop or #values >= limit then
            return values, false
        end
    end
    return values, has.whole
end

local function put_in_flight(queue, flight, values, trip)
    local first = redis.call('HINCRBY', queue .. ':fence', 'seq', #values) - #values + 1
    for from = 1, #values, CHUNK do
        local pairs_ = {}
        for i = from, math.min(from + CHUNK - 1, #values) do
            pairs_[#pairs_ + 1] = (first + i - 1) .. ':' .. trip
            pairs_[#pairs_ + 1] = values[i]
        end
        redis.call('HSET', flight, unpack(pairs_))
    end
    return first
end

local function is_empty(queue, has)
    for _, priority in ipairs(steps) do
        local name = list(queue, priority)
        if redis.call('EXISTS', name) == 1 or (has.cut and redis.call('EXISTS', name .. ':ahead') == 1) then
            return false
        end
    end
    return true
end

local function with_marks(queue, value)
    local body = body_of(value)
    local marks = redis.call('HGET', queue .. ':marks', digest_of(body))
    return marks and string.match(value, '^%d+') .. ',' .. marks .. ':' .. body or value
end

-- What an empty slot need not have. Marks and bodies of messages that left by another way (a purge) would stay for ever.
local function sweep(queue, has)
    if has.heavy or has.light then
        redis.call('HDEL', queue .. ':fence', 'heavy', 'light')
    end
    note_less(queue .. ':fence')
    if not (has.marks or has.big) or redis.call('EXISTS', queue .. ':flight', queue .. ':deferred') > 0 then
        return
    end
    -- A message of a priority that is no step (any more) may stand in a list that nobody has looked at.
    for priority = 1, 9 do
        local name = list(queue, tostring(priority))
        if redis.call('EXISTS', name, name .. ':ahead') > 0 then
            return
        end
    end
    redis.call('UNLINK', queue .. ':marks')
    for _, key in ipairs(has.big and redis.call('SPOP', queue .. ':big', SAMPLES) or {}) do
        redis.call('UNLINK', key)
    end
    redis.call('HDEL', queue .. ':fence', 'marks', redis.call('EXISTS', queue .. ':big') == 0 and 'big' or 'marks')
end

local reply, answered = {}, 0
local function say(item)
    answered = answered + 1
    reply[answered] = item
end

-- Nothing may fail once messages have left their list: what else is needed is touched before.
local function touch(queue, has)
    if not has.touched then
        redis.call('HLEN', has.flight)
    end
    if has.marks then
        redis.call('HLEN', queue .. ':marks')
    end
end

local function take(queue, limit, has, trip)
    if spent > BUDGET then -- next time
        say(0)
        say('')
        say('')
        say(0)
        return
    end
    touch(queue, has)
    local due = has.deferred and wake_deferred(queue, has) or ''
    local values, seen = pop(queue, limit, has)
    -- A list read by a script is watched by some servers for client-side caching: look only where it cannot be known.
    local empty = (seen or is_empty(queue, has)) and (due == '' or tonumber(due) > tonumber(now))
    say(empty and 1 or 0)
    say(due)
    say(has.too_big or '')
    say(#values)
    if #values > 0 then
        say(put_in_flight(queue, has.flight, values, trip))
    end
    for _, value in ipairs(values) do
        say(has.marks and with_marks(queue, value) or value)
    end
    if has.cut and has.whole then
        end_cut(queue, has)
    end
    if empty and has.more then
        sweep(queue, has)
    end
end

-- Return what the slot has; nil: an opening of it is under way.
local function read_notes(queue, more)
    local has = {queue = queue, flight = queue .. ':flight', more = more, whole = true, touched = false}
    if more then
        local values = redis.call('HMGET', queue .. ':fence', unpack(MORE))
        for i, name in ipairs(MORE) do
            has[name] = values[i] or nil
        end
    end
    return not has.opening and has or nil
end

local function take_safely(queue, limit, has, at)
    local said = answered
    local trip = ARGV[at + 1] .. '.' .. ARGV[at + 2] .. '.' .. ARGV[4]
    local done, err = pcall(take, queue, limit, has, trip)
    if not done then
        for i = answered, said + 1, -1 do
            reply[i] = nil
        end
        answered = said
        say(explained(err, queue, separator, steps))
    end
end

local at = 5
for _, queue in ipairs(KEYS) do
    local fence, has = redis.pcall('HMGET', queue .. ':fence', 'epoch', 'incarnation', 'count', 'more'), nil
    if fence[1] == ARGV[at] and fence[2] == ARGV[at + 1] and fence[3] == ARGV[at + 2] then
        has = read_notes(queue, fence[4])
    end
    say(has and 1 or fence.err and explained(fence, queue, separator, steps) or 0)
    steps = has and has.former and steps_with(has.former) or configured
    local tenure = at
    at = at + 5
    for _ = 1, ARGV[tenure + 4] do
        local act = string.sub(ARGV[at], 1, 1)
        if has then
            -- Nearly always there is no more to it than this one record. An error is met again, and explained, there.
            local answer = act == 'a' and not has.more and redis.pcall('HDEL', has.flight, string.sub(ARGV[at], 2))
            if type(answer) == 'number' then
                has.touched = true
                say(answer)
            else
                say(settle_safely(queue, act, at, has))
            end
        end
        at = at + VERDICT_ARGS[act]
    end
    local limit = tonumber(ARGV[tenure + 3])
    if has and limit >= 0 then
        take_safely(queue, limit, has, tenure)
    end
end
return reply
