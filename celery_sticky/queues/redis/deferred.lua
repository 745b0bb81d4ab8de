-- Part of fetch: deferred messages come back to their queue when their time has come.

local WAKE = 256 -- deferred messages that are woken by one request
local woken = 0

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
