-- Part of fetch: messages move from their queue into flight.

local CHUNK = 500 -- Lua cannot unpack many thousand arguments at once
local MESSAGE_COST = 1024 -- bytes charged for a message in addition to its body
local SAMPLES = 128 -- newest nodes of a list that are measured; for a shorter list the weight is exact
local BULK = 2 * BUDGET -- lists of at most this many bytes are popped in one go, whatever the sizes in them
local LIGHT = 32768 -- a heavier list is read here if its average message has at most this many bytes
local PART = 8 -- messages of such a list that are read in one go
local brought = 0

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

-- Pop a list part by part until a message is too big; return whether the slot must stop here.
local function pop_parts(name, priority, limit, values, has, most)
    local part = 1 -- small at first, since sizes are unknown
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

-- Pop messages of one list; return whether the slot must stop here: the budget is used up, or the next one is too big.
local function pop_list(name, priority, limit, values, has)
    local weight = redis.pcall('MEMORY', 'USAGE', name, 'SAMPLES', SAMPLES)
    if type(weight) == 'table' then -- an access list refuses the command: assume that the list is light
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

-- Return whether a list other than that of the first step may hold a message. Usually none does.
local function has_others(queue, has)
    local others = {}
    for i = 2, #steps do
        others[i - 1] = list(queue, steps[i])
    end
    return has.cut or (others[1] and redis.call('EXISTS', unpack(others)) > 0)
end

-- Return the popped messages, and whether every list was read to its end.
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

-- Remove what an empty slot does not need. Marks and bodies of purged messages would otherwise stay forever.
local function sweep(queue, has)
    if has.heavy or has.light then
        redis.call('HDEL', queue .. ':fence', 'heavy', 'light')
    end
    note_less(queue .. ':fence')
    if not (has.marks or has.big) or redis.call('EXISTS', queue .. ':flight', queue .. ':deferred') > 0 then
        return
    end
    -- A message whose priority is not a step may be in a list that nobody has read.
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

-- Nothing may fail after messages have left their list: access every other key first, so that a wrong type fails here.
local function touch(queue, has)
    redis.call('HLEN', has.flight)
    if has.marks then
        redis.call('HLEN', queue .. ':marks')
    end
end

local function take(queue, limit, has, trip)
    if spent > BUDGET then -- the budget is used up: next time
        say(0)
        say('')
        say('')
        say(0)
        return
    end
    touch(queue, has)
    local due = has.deferred and wake_deferred(queue, has) or ''
    local values, seen = pop(queue, limit, has)
    -- Some servers track lists read by a script for client-side caching: read only if the answer is not known yet.
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

local function take_safely(queue, limit, has, trip)
    local said = answered
    local done, err = pcall(take, queue, limit, has, trip)
    if not done then
        for i = answered, said + 1, -1 do
            reply[i] = nil
        end
        answered = said
        say(explained(err, queue, separator, steps))
    end
end
